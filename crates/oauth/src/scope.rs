//! Which scopes are asked for (MCP authorization, "Scope Selection Strategy" and "Step-Up Authorization Flow").

/// What is known when scopes are chosen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScopeSources<'a> {
    /// Set by the operator; these are always asked for.
    pub(crate) configured: &'a [String],
    /// Asked for before, on the same authorization server.
    pub(crate) before: &'a [String],
    /// Of the server's challenge.
    pub(crate) challenged: &'a [String],
    /// Of the protected resource's metadata.
    pub(crate) supported: &'a [String],
    /// Of the authorization server's metadata.
    pub(crate) server_supported: &'a [String],
}

/// The scopes to ask for, without repetitions: the challenge's, or else the resource's, with those that were set or
/// asked for before. Empty leaves the parameter out. `offline_access`, which brings a refresh token, joins them where
/// the authorization server knows it; alone it would replace the server's own default.
pub(crate) fn choose(sources: ScopeSources<'_>) -> Vec<String> {
    let wanted = match (sources.challenged, sources.configured) {
        ([], []) => sources.supported,
        (challenged, _) => challenged,
    };
    let mut chosen: Vec<String> = Vec::new();
    for scope in sources.configured.iter().chain(sources.before).chain(wanted) {
        if !chosen.contains(scope) {
            chosen.push(scope.clone());
        }
    }
    let offline = |scope: &String| scope == OFFLINE_ACCESS;
    if !chosen.is_empty() && sources.server_supported.iter().any(offline) && !chosen.iter().any(offline) {
        chosen.push(OFFLINE_ACCESS.to_owned());
    }
    chosen
}

/// The scope that asks for a refresh token (OpenID Connect Core section 11).
pub(crate) const OFFLINE_ACCESS: &str = "offline_access";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_source_decides_and_nothing_asked_for_is_lost() {
        let words = |text: &str| text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        for (configured, before, challenged, supported, server, expect) in [
            ("", "", "", "", "", ""),
            ("", "", "", "a b", "", "a b"),
            ("", "", "c", "a b", "", "c"),
            ("", "a", "c a", "b", "", "a c"),
            ("x", "", "", "a b", "", "x"),
            ("x", "", "c", "a b", "", "x c"),
            ("", "", "", "", "offline_access", ""),
            ("", "", "c", "", "c offline_access", "c offline_access"),
            ("", "offline_access c", "c", "", "offline_access", "offline_access c"),
        ] {
            let chosen = choose(ScopeSources {
                configured: &words(configured),
                before: &words(before),
                challenged: &words(challenged),
                supported: &words(supported),
                server_supported: &words(server),
            });
            assert_eq!(chosen, words(expect), "{configured:?} {before:?} {challenged:?} {supported:?} {server:?}");
        }
    }
}
