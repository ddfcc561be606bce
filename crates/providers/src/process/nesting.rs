//! The mark by which a process knows that a Toolwright started it, itself or through others.

/// Environment variable of every process that a Toolwright starts: how many Toolwrights stand above it. Nothing that
/// is configured overrides it.
pub const DEPTH_VARIABLE: &str = "TOOLWRIGHT_DEPTH";
/// Ancestors that are looked at.
#[cfg(target_os = "linux")]
const MAX_ANCESTORS: usize = 256;
/// Bytes of a program's name that Linux keeps for a process.
#[cfg(target_os = "linux")]
const MAX_NAME: usize = 15;

/// How many Toolwrights stand above this process, by the mark.
pub(crate) fn depth() -> u32 {
    std::env::var(DEPTH_VARIABLE).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0)
}

/// Whether a Toolwright started this process, itself or through others: a command of a model's shell, an MCP server, or
/// what these start. Such a process may not approve anything in its owner's name. The mark tells, and on Linux the
/// processes above too, since a command can clear its environment.
#[must_use]
pub fn is_nested() -> bool {
    std::env::var_os(DEPTH_VARIABLE).is_some_and(|mark| !mark.is_empty() && mark != "0") || is_below_another()
}

/// Whether a process above this one has this program's name.
#[cfg(target_os = "linux")]
fn is_below_another() -> bool {
    let own = std::env::current_exe().ok();
    let own = own.as_deref().and_then(|own| own.file_name()?.to_str()).unwrap_or("toolwright");
    let own = own.get(..MAX_NAME).unwrap_or(own);
    let mut process = std::os::unix::process::parent_id();
    for _ in 0..MAX_ANCESTORS {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { break };
        match name_and_parent(&status) {
            Some((name, _)) if name == own => return true,
            Some((_, parent)) if parent > 0 => process = parent,
            _ => break,
        }
    }
    false
}

/// The name of a process and the id of its parent, out of `/proc/PID/stat`: `1 (name) S 0 …`.
#[cfg(target_os = "linux")]
fn name_and_parent(status: &str) -> Option<(&str, u32)> {
    let (head, rest) = status.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    Some((name, rest.split_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(not(target_os = "linux"))]
fn is_below_another() -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_brackets_is_read_whole() {
        assert_eq!(name_and_parent("17 (a) b (c)) S 4 17 0"), Some(("a) b (c)", 4)));
        assert_eq!(name_and_parent("17 (sh)"), None);
        assert!(!is_below_another());
    }
}
