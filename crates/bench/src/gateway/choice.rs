//! Selects the targets of the gateway benchmark: the ways to a server, and the processes on each way.

use clap::ValueEnum;

/// A part of the benchmark: what stands at the two ends, or what is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchPart {
    /// Calls, a pipe to a pipe.
    Stdio,
    /// Calls, HTTP to a pipe: for peers that take calls over HTTP only. Direct is the pipe itself.
    HttpStdio,
    /// Calls, HTTP to HTTP.
    Http,
    /// From `exec` until the tools of 1, 10 and 50 servers are listed.
    Starts,
    /// The first call to a server that is started for it, beside that server's own start.
    Lazy,
    /// Listing 1,000 tools, and the memory after it.
    Memory,
}

impl BenchPart {
    /// Returns the name in a row.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::HttpStdio => "http-stdio",
            Self::Http => "http",
            Self::Starts => "starts",
            Self::Lazy => "lazy",
            Self::Memory => "memory",
        }
    }

    /// Returns the targets of this part.
    fn targets(self) -> &'static [Target] {
        use Target::{
            CrateProxy, Direct, DirectUnversioned, FastMcp, McpHub, NaiveProxy, PyProxy, Toolwright, TwoCats,
        };
        match self {
            Self::Stdio => &[Direct, TwoCats, Toolwright, NaiveProxy, FastMcp],
            Self::HttpStdio => &[Direct, Toolwright, NaiveProxy, CrateProxy, PyProxy, FastMcp, McpHub],
            Self::Http => &[Direct, DirectUnversioned, Toolwright, NaiveProxy, CrateProxy, FastMcp, McpHub],
            Self::Starts => &[Direct, Toolwright, CrateProxy, FastMcp, McpHub],
            Self::Lazy => &[Direct, Toolwright],
            Self::Memory => &[Direct, Toolwright, NaiveProxy, CrateProxy, FastMcp, McpHub],
        }
    }

    /// Returns the targets of this part that are in `only` (all if it is empty), and always the direct way first.
    pub(super) fn chosen(self, only: &[Target]) -> Vec<Target> {
        let wanted = |target: &Target| *target == Target::Direct || only.is_empty() || only.contains(target);
        self.targets().iter().copied().filter(wanted).collect()
    }
}

/// What stands between a client and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub(super) enum Target {
    /// Nothing. Always measured: all ratios are to it.
    Direct,
    /// Nothing, and requests over HTTP do not say their revision, as those of the crate `mcp-proxy` do not: the reference
    /// server then leaves out the first event of each answer, which costs it more than the call.
    DirectUnversioned,
    /// A relay of two `cat`s: the floor for a process in the middle.
    TwoCats,
    /// This gateway with everything on.
    Toolwright,
    /// Some 40 lines on the official Rust SDK.
    NaiveProxy,
    /// The crate `mcp-proxy`.
    #[value(name = "mcp-proxy")]
    CrateProxy,
    /// PyPI `mcp-proxy`.
    #[value(name = "mcp-proxy-py")]
    PyProxy,
    /// PyPI `fastmcp`.
    #[value(name = "fastmcp")]
    FastMcp,
    /// npm `mcp-hub`, through its own HTTP interface.
    McpHub,
}

impl Target {
    /// Returns the name in a row.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectUnversioned => "direct-unversioned",
            Self::TwoCats => "two-cats",
            Self::Toolwright => "toolwright",
            Self::NaiveProxy => "naive-proxy",
            Self::CrateProxy => "mcp-proxy",
            Self::PyProxy => "mcp-proxy-py",
            Self::FastMcp => "fastmcp",
            Self::McpHub => "mcp-hub",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Options;
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parsed(line: &str) -> Result<Options, String> {
        let cli = Cli::try_parse_from(std::iter::once("bench").chain(line.split_whitespace()));
        cli.map(|cli| cli.options).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_those_of_rows() {
        for part in BenchPart::value_variants() {
            assert_eq!(part.to_possible_value().expect("a value").get_name(), part.name());
        }
        for target in Target::value_variants() {
            assert_eq!(target.to_possible_value().expect("a value").get_name(), target.name());
        }
    }

    #[test]
    fn direct_is_always_measured() {
        let check = |line: &str, part: BenchPart, expect: &[Target]| {
            assert_eq!(part.chosen(&parsed(line).expect("it parses").only), expect, "{line:?} {part:?}");
        };
        check("", BenchPart::Lazy, &[Target::Direct, Target::Toolwright]);
        check(
            "--only mcp-proxy,toolwright",
            BenchPart::Http,
            &[Target::Direct, Target::Toolwright, Target::CrateProxy],
        );
        check("--only two-cats", BenchPart::Stdio, &[Target::Direct, Target::TwoCats]);
        check("--only two-cats", BenchPart::Http, &[Target::Direct]);
        check("--only fastmcp --only direct", BenchPart::Stdio, &[Target::Direct, Target::FastMcp]);
    }

    #[test]
    fn parts_are_chosen_by_name() {
        let parts = |line: &str| parsed(line).map(|options| options.parts());
        assert_eq!(parts(""), Ok(BenchPart::value_variants().to_vec()));
        assert_eq!(parts("--path lazy,stdio"), Ok(vec![BenchPart::Lazy, BenchPart::Stdio]));
        assert!(parts("--path pipes").expect_err("no such part").contains("possible values: stdio, http-stdio, http"));
        assert!(parts("--only cats").expect_err("no such target").contains("two-cats"));
        assert!(parts("--seconds 0").is_err());
        assert!(parts("--calls 0").is_err());
    }
}
