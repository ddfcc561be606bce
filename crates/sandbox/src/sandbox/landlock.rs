//! A profile's grants as a Landlock ruleset: whatever it does not grant is refused, for the process and all
//! that it starts.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    Scope, path_beneath_rules,
};
use toolwright_core::sandbox::Grant;

use super::{Sandbox, places};

/// The newest rights that were looked at. What an older kernel does not know is left out, and reported by
/// [`toolwright_core::sandbox::enforcement`].
const KNOWN: ABI = ABI::V9;

/// The ruleset for a start of `program`; `None` where the kernel has no Landlock.
///
/// # Errors
/// Of the kernel: out of memory or descriptors.
pub(super) fn ruleset(sandbox: &Sandbox, program: &Path, scratch: &Path) -> io::Result<Option<OwnedFd>> {
    build(sandbox, program, scratch).map_err(io::Error::other)
}

fn build(sandbox: &Sandbox, program: &Path, scratch: &Path) -> Result<Option<OwnedFd>, RulesetError> {
    let grants = sandbox.profile.grants();
    let sockets = grants.contains(&Grant::Sockets);
    let mut handled = AccessFs::from_all(KNOWN);
    let mut scopes = Scope::from_all(KNOWN);
    if sockets {
        handled.remove(AccessFs::ResolveUnix);
        scopes.remove(Scope::AbstractUnixSocket);
    }
    let mut ruleset = Ruleset::default().handle_access(handled)?.scope(scopes)?;
    if !sockets {
        ruleset = ruleset.handle_access(AccessNet::from_all(KNOWN))?;
    }
    let read = AccessFs::from_read(KNOWN);
    // Nodes of devices would lead around every rule.
    let write = handled & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let mut ruleset = ruleset.create()?;
    for grant in grants {
        let (area, access) = match grant {
            Grant::Read(area) => (*area, read),
            Grant::Write(area) => (*area, write),
            Grant::Sockets => continue,
        };
        ruleset = allow(ruleset, &places::paths(area, sandbox, scratch), access)?;
    }
    ruleset = allow(ruleset, &[program.to_owned()], read)?;
    ruleset = allow(ruleset, &sandbox.settings.read, read)?;
    Ok(ruleset.into())
}

fn allow(
    ruleset: landlock::RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, RulesetError> {
    ruleset.add_rules(path_beneath_rules(paths, access))
}
