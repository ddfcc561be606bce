//! Maps the grants of a profile to arguments of bubblewrap.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use toolwright_core::sandbox::{Area, Grant, Restriction};

use super::Sandbox;
use super::landlock_rules::paths;
use crate::protected::{ancestor_folders, existing_in};

/// Name of bubblewrap, looked up in `PATH`.
pub(super) const BUBBLEWRAP: &str = "bwrap";

/// The grants as bubblewrap's command line (bwrap(1)), up to the command's own program and arguments. `filter` must be
/// inherited by bubblewrap under the number that it has now.
pub(super) fn arguments(
    sandbox: &Sandbox,
    program: &Path,
    scratch: &Path,
    directory: &Path,
    filter: Option<&File>,
) -> Vec<OsString> {
    let mut line = Line(vec![BUBBLEWRAP.into()]);
    // Separate PID and IPC namespaces: outside processes can be neither seen nor signalled.
    line.add(["--die-with-parent", "--unshare-pid", "--unshare-ipc"]);
    if !sandbox.profile.grants().contains(&Grant::Sockets) {
        line.add(["--unshare-net"]);
    }
    for grant in sandbox.profile.grants() {
        match grant {
            Grant::Read(area) => line.bind("--ro-bind-try", &paths(*area, sandbox, scratch)),
            Grant::Write(Area::Devices) => line.add(["--dev", "/dev", "--proc", "/proc"]),
            Grant::Write(area) => line.bind("--bind-try", &paths(*area, sandbox, scratch)),
            Grant::Sockets => {}
        }
    }
    if !sandbox.profile.grants().contains(&Grant::Read(Area::Everything)) {
        line.bind("--ro-bind-try", &[program.to_owned()]);
        line.bind("--ro-bind-try", &sandbox.settings.read);
    }
    if sandbox.profile.restrictions().contains(&Restriction::Protected) {
        let protected = existing_in(&sandbox.root, &sandbox.settings.protected);
        // A mount point cannot be renamed.
        line.bind("--bind-try", &ancestor_folders(&sandbox.root, &protected));
        line.bind("--ro-bind-try", &protected);
    }
    if let Some(filter) = filter {
        line.add(["--seccomp".to_owned(), filter.as_raw_fd().to_string()]);
    }
    line.add(["--chdir".into(), directory.as_os_str().to_owned(), OsString::from("--")]);
    line.0
}

struct Line(Vec<OsString>);

impl Line {
    fn add<T: Into<OsString>>(&mut self, arguments: impl IntoIterator<Item = T>) {
        self.0.extend(arguments.into_iter().map(Into::into));
    }

    fn bind(&mut self, how: &str, paths: &[PathBuf]) {
        for path in paths {
            self.add([how.into(), path.clone().into_os_string(), path.clone().into_os_string()]);
        }
    }
}
