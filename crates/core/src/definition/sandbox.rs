//! Sandbox profiles: the rights of a tool's processes, and which restrictions a machine can enforce.
//!
//! A profile promises a set of [`Restriction`]s. [`enforcement`] says which of them hold on a machine and by
//! which mechanism; it is a pure function, so that a table can test it for any kernel. The walls
//! themselves are built in `toolwright-sandbox`.
//!
//! No profile hides that a file exists: names, sizes and times from stat(2) are not protected.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How far the processes of a tool reach. Ordered: each one may do all that those before it may, but that
/// `Pure` alone has nothing of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxProfile {
    /// Computes: reads what programs need to run, writes to a temporary folder of its own.
    Pure,
    /// Reads any file that the user may; writes to a temporary folder of its own.
    ReadOnly,
    /// As `read-only`, and writes in the workspace, but not to files that decide what runs.
    Workspace,
    /// As `workspace`, with network. Sockets of other programs on this machine (Docker, D-Bus) are part of it.
    Network,
    /// No sandbox: the user's own rights.
    Full,
}

/// The text is not the name of a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no sandbox profile `{0}`: write pure, read-only, workspace, network or full")]
pub struct UnknownProfile(String);

impl SandboxProfile {
    /// All profiles, narrowest first.
    pub const ALL: [Self; 5] = [Self::Pure, Self::ReadOnly, Self::Workspace, Self::Network, Self::Full];

    /// Its name in configuration and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::ReadOnly => "read-only",
            Self::Workspace => "workspace",
            Self::Network => "network",
            Self::Full => "full",
        }
    }

    /// Rights of its processes. Empty for `Full`, which is unrestricted.
    #[must_use]
    pub fn grants(self) -> &'static [Grant] {
        use Grant::{Read, Write};
        match self {
            Self::Pure => &[Read(Area::Programs), Write(Area::Devices), Write(Area::Scratch)],
            Self::ReadOnly => &[Read(Area::Everything), Write(Area::Devices), Write(Area::Scratch)],
            Self::Workspace => {
                &[Read(Area::Everything), Write(Area::Devices), Write(Area::Scratch), Write(Area::Workspace)]
            }
            Self::Network => &[
                Read(Area::Everything),
                Write(Area::Devices),
                Write(Area::Scratch),
                Write(Area::Workspace),
                Grant::Sockets,
            ],
            Self::Full => &[],
        }
    }

    /// Restrictions that it promises.
    #[must_use]
    pub fn restrictions(self) -> &'static [Restriction] {
        use Restriction::{Kernel, Metadata, Network, Processes, Protected, Reads, Services, Writes};
        match self {
            Self::Pure => &[Reads, Writes, Metadata, Network, Services, Processes, Kernel],
            Self::ReadOnly => &[Writes, Metadata, Network, Services, Processes, Kernel],
            Self::Workspace => &[Writes, Metadata, Protected, Network, Services, Processes, Kernel],
            Self::Network => &[Writes, Metadata, Protected, Processes, Kernel],
            Self::Full => &[],
        }
    }
}

impl fmt::Display for SandboxProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SandboxProfile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == name).ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

/// A right of a profile's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// Read and execute there.
    Read(Area),
    /// Read, execute and write there.
    Write(Area),
    /// Make and connect sockets of any kind.
    Sockets,
}

/// A part of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// The whole file system.
    Everything,
    /// Files that programs and their libraries need to run: system folders and some of `/etc`.
    Programs,
    /// The workspace root, and folders added by the configuration.
    Workspace,
    /// A folder made for one start and removed after it; `TMPDIR` names it.
    Scratch,
    /// Devices without a memory: `/dev/null` and its like, terminals.
    Devices,
}

/// A restriction of a profile's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restriction {
    /// Reading files that it has no grant for.
    Reads,
    /// Making, changing, renaming and deleting files that it has no grant for.
    Writes,
    /// Changing permissions, owner, times and attributes of files that it may not write.
    Metadata,
    /// Changing protected files in the workspace: those that decide what runs.
    Protected,
    /// Sockets other than Unix sockets.
    Network,
    /// Connecting to Unix sockets of other programs.
    Services,
    /// Signalling, tracing and reading processes that it did not start.
    Processes,
    /// Mounts, namespaces, modules, BPF, keys, `io_uring` and the like.
    Kernel,
}

impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Metadata => "metadata",
            Self::Protected => "protected",
            Self::Network => "network",
            Self::Services => "services",
            Self::Processes => "processes",
            Self::Kernel => "kernel",
        })
    }
}

/// Sandbox mechanisms available on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SandboxSupport {
    /// Landlock ABI version; 0 if the kernel has none.
    pub landlock: u32,
    /// Whether system calls can be filtered.
    pub seccomp: bool,
    /// Whether this process may mount; root may, outside of containers.
    pub mounts: bool,
    /// Whether bubblewrap is installed and works.
    pub bubblewrap: bool,
}

/// How the walls of one start are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// No mechanism: there are no walls to build, or no means.
    None,
    /// In the process itself: Landlock, seccomp, and mounts if it may make them.
    Kernel,
    /// Mount, process and network namespaces made by bubblewrap, and seccomp.
    Bubblewrap,
}

/// Which walls of a profile hold on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    /// The profile.
    pub profile: SandboxProfile,
    /// The mechanism.
    pub mechanism: Mechanism,
    /// Walls that hold, each with its means.
    pub enforced: Vec<(Restriction, &'static str)>,
    /// Walls that do not hold, wholly or in part, and why.
    pub not_enforced: Vec<(Restriction, &'static str)>,
}

impl Enforcement {
    /// Whether every wall holds.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.not_enforced.is_empty()
    }

    /// Describes the walls that do not hold, as a sentence for the operator; `None` if all hold.
    #[must_use]
    pub fn gaps(&self) -> Option<String> {
        let gaps: Vec<String> =
            self.not_enforced.iter().map(|(restriction, why)| format!("{restriction} ({why})")).collect();
        (!gaps.is_empty())
            .then(|| format!("the sandbox profile {} is not enforced for {}", self.profile, gaps.join("; ")))
    }

    /// `{profile, enforced: ["writes: landlock"], not_enforced: ["protected: …"]}`
    #[must_use]
    pub fn to_json(&self) -> Value {
        let lines = |restrictions: &[(Restriction, &str)]| -> Vec<String> {
            restrictions.iter().map(|(restriction, what)| format!("{restriction}: {what}")).collect()
        };
        json!({
            "profile": self.profile,
            "enforced": lines(&self.enforced),
            "not_enforced": lines(&self.not_enforced),
        })
    }
}

/// Returns how a profile is enforced with these means: by the mechanism that leaves fewer walls open, or by the
/// kernel itself if both are equal, because that costs no process.
#[must_use]
pub fn enforcement(profile: SandboxProfile, support: &SandboxSupport) -> Enforcement {
    if profile == SandboxProfile::Full {
        return Enforcement { profile, mechanism: Mechanism::None, enforced: Vec::new(), not_enforced: Vec::new() };
    }
    let kernel = by(profile, Mechanism::Kernel, |restriction| in_kernel(profile, restriction, support));
    if !support.bubblewrap {
        return if support.landlock == 0 && !support.seccomp {
            Enforcement { mechanism: Mechanism::None, ..kernel }
        } else {
            kernel
        };
    }
    let wrapped = by(profile, Mechanism::Bubblewrap, |restriction| in_bubblewrap(restriction, support));
    if wrapped.not_enforced.len() < kernel.not_enforced.len() { wrapped } else { kernel }
}

fn by(
    profile: SandboxProfile,
    mechanism: Mechanism,
    holds: impl Fn(Restriction) -> Result<&'static str, &'static str>,
) -> Enforcement {
    let mut all = Enforcement { profile, mechanism, enforced: Vec::new(), not_enforced: Vec::new() };
    for &restriction in profile.restrictions() {
        match holds(restriction) {
            Ok(by) => all.enforced.push((restriction, by)),
            Err(why) => all.not_enforced.push((restriction, why)),
        }
    }
    all
}

const NO_LANDLOCK: &str = "the kernel has no Landlock (Linux 5.13 and later, switched on at boot)";
const NO_SECCOMP: &str = "system calls cannot be filtered on this machine";

fn in_kernel(
    profile: SandboxProfile,
    restriction: Restriction,
    support: &SandboxSupport,
) -> Result<&'static str, &'static str> {
    let reads_only = matches!(profile, SandboxProfile::Pure | SandboxProfile::ReadOnly);
    match restriction {
        Restriction::Reads | Restriction::Writes if support.landlock == 0 => Err(NO_LANDLOCK),
        Restriction::Writes if support.landlock < 3 => Err("Landlock stops truncating files from Linux 6.2 on"),
        Restriction::Reads | Restriction::Writes => Ok("landlock"),
        Restriction::Metadata if reads_only && support.seccomp => Ok("seccomp"),
        Restriction::Metadata if !reads_only && support.mounts => Ok("mounts"),
        Restriction::Protected if support.mounts => {
            Ok("mounts: those that exist at the start, and the names of Toolwright's configuration")
        }
        Restriction::Metadata => {
            Err("Landlock does not cover permissions, owners and times of files outside the workspace; bubblewrap does")
        }
        Restriction::Protected => Err(
            "Landlock cannot except files of a folder that may be written, such as .git and toolwright.yaml; bubblewrap can",
        ),
        Restriction::Network | Restriction::Services | Restriction::Kernel if !support.seccomp => Err(NO_SECCOMP),
        Restriction::Network if support.landlock >= 4 => Ok("seccomp, landlock"),
        Restriction::Network | Restriction::Services | Restriction::Kernel => Ok("seccomp"),
        Restriction::Processes if support.landlock == 0 => Err(NO_LANDLOCK),
        Restriction::Processes if support.landlock < 6 => Err("Landlock stops signals from Linux 6.12 on"),
        Restriction::Processes => Ok("landlock"),
    }
}

fn in_bubblewrap(restriction: Restriction, support: &SandboxSupport) -> Result<&'static str, &'static str> {
    match restriction {
        Restriction::Reads
        | Restriction::Writes
        | Restriction::Metadata
        | Restriction::Network
        | Restriction::Processes => Ok("bubblewrap"),
        Restriction::Protected => {
            Ok("bubblewrap: those that exist at the start, and the names of Toolwright's configuration")
        }
        Restriction::Services | Restriction::Kernel if support.seccomp => Ok("seccomp"),
        Restriction::Services | Restriction::Kernel => Err(NO_SECCOMP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for profile in SandboxProfile::ALL {
            assert_eq!(profile.as_str().parse(), Ok(profile));
            assert_eq!(serde_json::to_value(profile).expect("json"), json!(profile.as_str()));
        }
        let error = "readonly".parse::<SandboxProfile>().expect_err("unknown");
        assert!(error.to_string().contains("read-only"), "{error}");
    }

    #[test]
    fn wider_profiles_keep_narrower_grants() {
        for pair in SandboxProfile::ALL[..4].windows(2) {
            for grant in pair[0].grants().iter().filter(|grant| **grant != Grant::Read(Area::Programs)) {
                assert!(pair[1].grants().contains(grant), "{} {grant:?}", pair[1]);
            }
        }
    }

    #[track_caller]
    fn check(
        profile: &str,
        (landlock, seccomp, bubblewrap): (u32, bool, bool),
        mechanism: Mechanism,
        open: &[Restriction],
    ) {
        check_with(profile, SandboxSupport { landlock, seccomp, mounts: false, bubblewrap }, mechanism, open);
    }

    #[track_caller]
    fn check_with(profile: &str, support: SandboxSupport, mechanism: Mechanism, open: &[Restriction]) {
        let profile: SandboxProfile = profile.parse().expect("profile");
        let found = enforcement(profile, &support);
        let not: Vec<Restriction> = found.not_enforced.iter().map(|(restriction, _)| *restriction).collect();
        assert_eq!((found.mechanism, not.as_slice()), (mechanism, open), "{profile}");
        assert_eq!(found.enforced.len() + not.len(), profile.restrictions().len());
        assert_eq!(found.gaps().is_none(), open.is_empty());
    }

    #[test]
    fn restrictions_follow_profile_and_machine() {
        use Mechanism::{Bubblewrap, Kernel as InKernel, None};
        use Restriction::{Kernel, Metadata, Network, Processes, Protected, Reads, Services, Writes};
        let new = (7, true, false);
        check("full", (0, false, false), None, &[]);
        check("pure", new, InKernel, &[]);
        check("read-only", new, InKernel, &[]);
        check("workspace", new, InKernel, &[Metadata, Protected]);
        check("network", new, InKernel, &[Metadata, Protected]);
        // Bubblewrap only if it leaves fewer gaps.
        check("pure", (7, true, true), InKernel, &[]);
        check("workspace", (7, true, true), Bubblewrap, &[]);
        check("network", (7, true, true), Bubblewrap, &[]);
        check("read-only", (0, true, true), Bubblewrap, &[]);
        check("workspace", (0, false, true), Bubblewrap, &[Services, Kernel]);
        // With mount privileges, bubblewrap is not needed.
        let root = SandboxSupport { landlock: 7, seccomp: true, mounts: true, bubblewrap: false };
        check_with("workspace", root, InKernel, &[]);
        check_with("network", SandboxSupport { bubblewrap: true, ..root }, InKernel, &[]);
        check_with("pure", SandboxSupport { seccomp: false, ..root }, InKernel, &[Metadata, Network, Services, Kernel]);
        // Older kernels.
        check("read-only", (5, true, false), InKernel, &[Processes]);
        check("read-only", (2, true, false), InKernel, &[Writes, Processes]);
        check("pure", (0, true, false), InKernel, &[Reads, Writes, Processes]);
        check("pure", (0, false, false), None, SandboxProfile::Pure.restrictions());
        check("pure", (7, false, false), InKernel, &[Metadata, Network, Services, Kernel]);
    }

    #[test]
    fn the_report_names_profile_and_restrictions() {
        let report = enforcement(
            SandboxProfile::Workspace,
            &SandboxSupport { landlock: 7, seccomp: true, ..SandboxSupport::default() },
        );
        let json = report.to_json();
        assert_eq!((&json["profile"], &json["enforced"][0]), (&json!("workspace"), &json!("writes: landlock")));
        assert!(json["not_enforced"][1].as_str().expect("text").starts_with("protected: "), "{json}");
    }
}
