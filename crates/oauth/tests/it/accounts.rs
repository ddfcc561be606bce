//! Whose a login is: told from others, followed, and ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolwright_core::Secret;
use toolwright_core::catalogue::Provider as _;
use toolwright_core::session::Principal;
use toolwright_mcp::client::{McpProvider, McpServerOptions, McpTransport};
use toolwright_net::{Authorizer as _, Retry};
use toolwright_oauth::{ClientProof, CredentialStore, Grant, Logout, OAuth, Revocation};

use super::setup::ServerFixture;
use super::{deps, parts, person, refusal};

#[tokio::test]
async fn logouts_revoke_and_forget_tokens() {
    for (revocation, expect) in [(Some(200), "Revoked"), (Some(400), "unsupported_token_type"), (None, "NotOffered")] {
        let setup = ServerFixture::start(|setup| setup.revocation = revocation).await;
        let store = CredentialStore::memory();
        person(parts(&setup, &store)).login(&[]).await.expect("logged in");
        // Another process than the one that logged in.
        let other = OAuth::new(parts(&setup, &store));
        let done = other.logout().await.expect("forgotten");
        let came_to = format!("{:?}", done.revocation);
        assert!(came_to.contains(expect) && !came_to.contains("r1"), "{came_to}");
        assert!(done.removed && other.login_state().await.expect("a state").token.is_none());
        let nothing = Logout { removed: false, revocation: Revocation::NoToken };
        assert_eq!(other.logout().await.expect("nothing"), nothing);
        let sent: Vec<_> = setup.revoked.lock().expect("revoked").drain(..).collect();
        let sent: Vec<_> =
            sent.iter().map(|form| ["token", "token_type_hint", "client_id"].map(|key| &*form[key])).collect();
        let both = [["r1", "refresh_token", "registered"], ["t1", "access_token", "registered"]];
        // That one is refused says nothing of the other.
        let count = if revocation.is_some() { 2 } else { 0 };
        assert_eq!(sent, both[..count], "{revocation:?}");
    }
    // A client with a secret proves itself.
    let setup = ServerFixture::start(|setup| setup.revocation = Some(200)).await;
    let store = CredentialStore::memory();
    let with_secret = || {
        let mut parts = parts(&setup, &store);
        parts.settings.grant = Grant::ClientCredentials;
        parts.settings.client_id = Some("us".into());
        parts.settings.proof = ClientProof::Secret(Secret::new("s"));
        parts
    };
    OAuth::new(with_secret()).login(&[]).await.expect("a token");
    assert_eq!(OAuth::new(with_secret()).logout().await.expect("forgotten").revocation, Revocation::Revoked);
    let sent = setup.revoked.lock().expect("revoked")[0]["Authorization"].clone();
    assert_eq!(sent, "Basic dXM6cw==");
}

#[tokio::test]
async fn logins_are_distinct_refreshes_are_not() {
    let setup = ServerFixture::start(|_| {}).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    let open = || OAuth::new(parts(&setup, &store));
    let scope = |oauth: OAuth| {
        let mut config =
            McpServerOptions::new("srv", McpTransport::Http { url: setup.base.clone(), headers: BTreeMap::new() });
        config.authorizer = Some(Arc::new(oauth));
        McpProvider::new(config, deps()).credential_scope(&Principal::owner())
    };
    let nobody = scope(open());
    assert_eq!(scope(open()), nobody);
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let first = scope(open());
    // Renewed, it is the same person's.
    let oauth = open();
    let sent = oauth.headers().await.expect("headers");
    assert_eq!(oauth.on_challenge(refusal(401, "Bearer"), sent).await, Ok(Retry::Yes));
    assert_eq!((oauth.identity(), scope(oauth)), (open().identity(), first));
    // Another person's, who has the same client.
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    let second = scope(open());
    let oauth = open();
    oauth.logout().await.expect("logged out");
    assert_eq!((scope(oauth), scope(open())), (nobody, nobody));
    assert!(first != nobody && second != nobody && first != second);
}

#[tokio::test]
async fn logins_of_other_processes_count_at_once() {
    let setup = ServerFixture::start(|_| {}).await;
    let folder = tempfile::tempdir().expect("a folder");
    // One store for each process.
    for open in [
        Box::new(|| CredentialStore::folder(folder.path())) as Box<dyn Fn() -> CredentialStore>,
        Box::new({
            let store = CredentialStore::memory();
            move || store.clone()
        }),
    ] {
        let first = person(parts(&setup, &open()));
        first.login(&[]).await.expect("logged in");
        let one = (first.identity(), first.headers().await.expect("headers"));
        let second = person(parts(&setup, &open()));
        assert_eq!((second.identity(), second.headers().await.expect("headers")), one);
        // Whoever logs in now is somebody else, for all that the first knows.
        second.login(&[]).await.expect("logged in");
        let other = (second.identity(), second.headers().await.expect("headers"));
        assert!(other.0 != one.0 && other.1 != one.1);
        assert_eq!(first.identity(), other.0, "results of the one are not served to the other");
        assert_eq!(first.headers().await.expect("headers"), other.1, "and calls go out as the other");
        second.logout().await.expect("logged out");
        assert_eq!((first.identity(), first.headers().await.expect("headers").len()), (String::new(), 0));
    }
}

#[tokio::test]
async fn two_addresses_have_a_login_each() {
    let setup = ServerFixture::start(|setup| setup.revocation = Some(200)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = CredentialStore::folder(folder.path());
    person(parts(&setup, &store)).login(&[]).await.expect("logged in");
    // Another project's entry of the same name.
    let mut theirs = parts(&setup, &store);
    theirs.url.set_query(Some("project=2"));
    let theirs = || OAuth::new(theirs.clone());
    assert_eq!(theirs().login_state().await.expect("a state").token, None);
    let nothing = Logout { removed: false, revocation: Revocation::NoToken };
    assert_eq!(theirs().logout().await.expect("nothing"), nothing);
    assert!(OAuth::new(parts(&setup, &store)).login_state().await.expect("a state").token.is_some());
    // What cannot be read cannot be revoked, and goes all the same.
    for file in std::fs::read_dir(folder.path()).expect("a folder").flatten() {
        std::fs::write(file.path(), "{").expect("written");
    }
    let done = OAuth::new(parts(&setup, &store)).logout().await.expect("forgotten");
    let Revocation::Failed(reason) = &done.revocation else { panic!("{done:?}") };
    assert!(done.removed && reason.contains("cannot be read"), "{reason}");
    assert_eq!(OAuth::new(parts(&setup, &store)).login_state().await.expect("a state").token, None);
    assert!(setup.revoked.lock().expect("revoked").is_empty());
}
