//! What is made of answers as servers write them, right and wrong.

use std::sync::atomic::Ordering;

use serde_json::json;
use toolwright_providers::oauth::{CredentialStore, LoginState, OAuthError};

use super::world::World;
use super::{parts, person};

async fn login(world: &World) -> Result<LoginState, OAuthError> {
    person(parts(world, &CredentialStore::memory())).login(&[]).await
}

#[tokio::test]
async fn a_page_in_place_of_metadata_has_the_next_place_asked() {
    let world = World::start(|world| world.is_silent = true).await;
    world.no_metadata.store(200, Ordering::SeqCst);
    world.no_server_metadata.store(200, Ordering::SeqCst);
    login(&world).await.expect("the metadata lies at the next places");
    // Where no place is left, it is said which one cannot be read.
    let world = World::start(|_| {}).await;
    world.no_metadata.store(200, Ordering::SeqCst);
    let error = login(&world).await.expect_err("no metadata").to_string();
    let place = format!("{}/.well-known/oauth-protected-resource/mcp cannot be read", world.base);
    assert!(error.contains(&place), "{error}");
    assert!(world.logins.lock().expect("logins").is_empty());
}
