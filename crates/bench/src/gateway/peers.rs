//! The pinned gateways that Toolwright is compared with, and their installation into one directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::choice::Target;
use crate::Failure;

/// The time limit of an installation, which may compile a crate.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// A program of others: its package, version, and location once installed.
struct Package {
    kind: Kind,
    name: &'static str,
    version: &'static str,
    folder: &'static str,
    program: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Npm,
    Pip,
    Cargo,
}

/// The server behind every target.
const EVERYTHING: Package = Package {
    kind: Kind::Npm,
    name: "@modelcontextprotocol/server-everything",
    version: "2026.8.31",
    folder: "node/everything",
    program: "node_modules/@modelcontextprotocol/server-everything/dist/index.js",
};

const MCP_HUB: Package = Package {
    kind: Kind::Npm,
    name: "mcp-hub",
    version: "4.2.1",
    folder: "node/hub",
    program: "node_modules/.bin/mcp-hub",
};

const FASTMCP: Package =
    Package { kind: Kind::Pip, name: "fastmcp", version: "4.1.2", folder: "fastmcp", program: "bin/python" };

const PY_PROXY: Package =
    Package { kind: Kind::Pip, name: "mcp-proxy", version: "0.13.0", folder: "mcp-proxy-py", program: "bin/mcp-proxy" };

const CRATE_PROXY: Package =
    Package { kind: Kind::Cargo, name: "mcp-proxy", version: "0.6.0", folder: "cargo", program: "bin/mcp-proxy" };

/// Returns the package of a target; `None` for targets in this program or the system.
fn package(target: Target) -> Option<&'static Package> {
    match target {
        Target::Direct | Target::DirectUnversioned | Target::TwoCats | Target::Toolwright | Target::NaiveProxy => None,
        Target::CrateProxy => Some(&CRATE_PROXY),
        Target::PyProxy => Some(&PY_PROXY),
        Target::FastMcp => Some(&FASTMCP),
        Target::McpHub => Some(&MCP_HUB),
    }
}

/// The programs of others in a directory.
pub(super) struct Peers {
    dir: PathBuf,
}

impl Peers {
    /// Uses this directory, whether the programs are installed or not.
    pub(super) fn within(dir: &Path) -> Result<Self, Failure> {
        Ok(Self { dir: std::path::absolute(dir)? })
    }

    /// Installs the reference server if it is missing.
    pub(super) fn install_everything(&self) -> Result<(), Failure> {
        self.install_package(&EVERYTHING)
    }

    /// Installs a target's program if it is missing.
    pub(super) fn install(&self, target: Target) -> Result<(), Failure> {
        package(target).map_or(Ok(()), |package| self.install_package(package))
    }

    fn install_package(&self, package: &Package) -> Result<(), Failure> {
        let folder = self.dir.join(package.folder);
        let mark = self.dir.join(format!("{}.installed", package.folder.replace('/', "-")));
        let wanted = package.requirement();
        // A program installed by other means has no mark and is used as it is.
        let is_right = std::fs::read_to_string(&mark).map_or(true, |installed| installed == wanted);
        if is_right && folder.join(package.program).exists() {
            return Ok(());
        }
        eprintln!("toolwright-bench: installing {wanted}");
        std::fs::create_dir_all(&folder)?;
        // Marks the installation as unfinished.
        std::fs::write(&mark, "begun")?;
        for mut command in package.installation(&folder) {
            run(&mut command).map_err(|error| format!("{wanted} cannot be installed: {error}"))?;
        }
        Ok(std::fs::write(mark, wanted)?)
    }

    /// Returns the command of the reference server, without the transport argument.
    pub(super) fn everything(&self) -> Result<Vec<String>, Failure> {
        Ok(vec!["node".into(), self.program(&EVERYTHING)?.to_string_lossy().into_owned()])
    }

    /// Returns the program of a target.
    pub(super) fn command(&self, target: Target) -> Result<Command, Failure> {
        let package = package(target).ok_or("no program of others")?;
        Ok(Command::new(self.program(package)?))
    }

    fn program(&self, package: &Package) -> Result<PathBuf, Failure> {
        let program = self.dir.join(package.folder).join(package.program);
        if program.exists() { Ok(program) } else { Err(format!("{} is not installed", package.requirement()).into()) }
    }
}

impl Package {
    fn requirement(&self) -> String {
        let between = if self.kind == Kind::Pip { "==" } else { "@" };
        format!("{}{between}{}", self.name, self.version)
    }

    fn installation(&self, folder: &Path) -> Vec<Command> {
        let command = |program: &Path, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args);
            command
        };
        match self.kind {
            Kind::Npm => {
                let mut npm = command(Path::new("npm"), &["install", "--no-audit", "--no-fund", "--loglevel=error"]);
                npm.arg("--prefix").arg(folder).arg(self.requirement());
                vec![npm]
            }
            Kind::Pip => {
                let mut venv = command(Path::new("python3"), &["-m", "venv", "--clear"]);
                venv.arg(folder);
                let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &self.requirement()];
                vec![venv, command(&folder.join("bin/python"), &pip)]
            }
            Kind::Cargo => {
                let wanted = ["--no-default-features", "--features", "yaml", "--root"];
                let mut cargo = command(Path::new("cargo"), &["install", &self.requirement(), "--locked", "--force"]);
                cargo.args(wanted).arg(folder);
                vec![cargo]
            }
        }
    }
}

/// Runs a command to its end, with its output on standard error.
fn run(command: &mut Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let started = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{program}: {status}").into()),
            None if started.elapsed() > TIMEOUT => {
                child.kill()?;
                child.wait()?;
                return Err(format!("{program} was not done within {} s", TIMEOUT.as_secs()).into());
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
