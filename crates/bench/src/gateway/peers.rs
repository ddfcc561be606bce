//! What Toolwright is held against, pinned, installed by name into one directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Failure;

/// The server that everything is measured in front of.
const EVERYTHING: &str = "@modelcontextprotocol/server-everything@2026.8.31";
const MCP_HUB: &str = "mcp-hub@4.2.1";
const FASTMCP: &str = "fastmcp==4.1.2";
const PY_MCP_PROXY: &str = "mcp-proxy==0.13.0";
const CRATE_MCP_PROXY: [&str; 3] = ["mcp-proxy", "--version", "0.6.0"];

/// Programs of others in a directory.
pub(super) struct Peers {
    dir: PathBuf,
}

impl Peers {
    /// Installs what is not there yet. What cannot be installed is named on standard error and left out.
    pub(super) fn install(dir: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(dir.join("node"))?;
        let peers = Self { dir: std::path::absolute(dir)? };
        for (name, package) in [("everything", EVERYTHING), ("hub", MCP_HUB)] {
            peers.npm(name, package);
        }
        for (name, package) in [("fastmcp", FASTMCP), ("mcp-proxy-py", PY_MCP_PROXY)] {
            peers.pip(name, package);
        }
        if !peers.dir.join("cargo/bin/mcp-proxy").exists() {
            let mut cargo = Command::new("cargo");
            cargo.arg("install").args(CRATE_MCP_PROXY).args([
                "--locked",
                "--no-default-features",
                "--features",
                "yaml",
            ]);
            said(cargo.arg("--root").arg(peers.dir.join("cargo")), "the crate mcp-proxy");
        }
        Ok(peers)
    }

    fn npm(&self, name: &str, package: &str) {
        let prefix = self.dir.join("node").join(name);
        if !prefix.join("node_modules").exists() {
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"]).arg(&prefix).arg(package);
            said(&mut npm, package);
        }
    }

    fn pip(&self, name: &str, package: &str) {
        let venv = self.dir.join(name);
        if !venv.join("installed").exists() {
            let made = said(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv), package);
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package];
            if made && said(Command::new(venv.join("bin/python")).args(pip), package) {
                // Half an installation would be taken for a whole one.
                let _ = std::fs::write(venv.join("installed"), package);
            }
        }
    }

    /// The reference server, over this transport (`stdio`, `streamableHttp`).
    pub(super) fn everything(&self) -> Vec<String> {
        let script = "node/everything/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        vec!["node".into(), self.path(script)]
    }

    /// PyPI `fastmcp`, if it is there.
    pub(super) fn fastmcp(&self) -> Option<Command> {
        self.program("fastmcp/bin/python")
    }

    /// PyPI `mcp-proxy`, if it is there.
    pub(super) fn py_mcp_proxy(&self) -> Option<Command> {
        self.program("mcp-proxy-py/bin/mcp-proxy")
    }

    /// The crate `mcp-proxy`, if it is there.
    pub(super) fn crate_mcp_proxy(&self) -> Option<Command> {
        self.program("cargo/bin/mcp-proxy")
    }

    /// npm `mcp-hub`, if it is there.
    pub(super) fn mcp_hub(&self) -> Option<Command> {
        self.program("node/hub/node_modules/.bin/mcp-hub")
    }

    fn program(&self, at: &str) -> Option<Command> {
        let path = self.dir.join(at);
        path.exists().then(|| Command::new(path))
    }

    fn path(&self, at: &str) -> String {
        self.dir.join(at).to_string_lossy().into_owned()
    }
}

/// Runs it and says if it fails.
fn said(command: &mut Command, what: &str) -> bool {
    eprintln!("toolwright-bench: installing {what}");
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !done {
        eprintln!("toolwright-bench: {what} cannot be installed, and is left out");
    }
    done
}
