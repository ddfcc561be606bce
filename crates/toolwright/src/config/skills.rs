//! Skills: folders with a file `SKILL.md`, as in Claude Code (agentskills.io/specification).

use std::path::Path;
use std::sync::Arc;

use toolwright_core::agents::legal_name;
use toolwright_core::catalogue::{MAX_SKILL_DESCRIPTION, MAX_SKILL_NAME, MAX_SKILL_TEXT, Skill};
use toolwright_core::pattern::nearest;

use super::files::folders::{DefinitionFolder, FolderKind};
use super::files::front_matter::{front_matter, split};
use super::files::node::{Data, Node, Problem, Severity, SourceLocation};
use super::sections::check::snake_case;

/// Keys of front matter for other programs, which have no effect here.
const OTHER_KEYS: [&str; 14] = [
    "license",
    "compatibility",
    "metadata",
    "version",
    "author",
    "tags",
    "argument_hint",
    "arguments",
    "user_invocable",
    "model",
    "effort",
    "context",
    "agent",
    "paths",
];
/// Keys that are used here.
const KEYS: [&str; 4] = ["name", "description", "when_to_use", "disable_model_invocation"];
/// Variable for the skill's folder in its text.
const FOLDER_VARIABLE: &str = "${CLAUDE_SKILL_DIR}";

/// A usable skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillEntry {
    /// The skill.
    pub skill: Skill,
    /// The place of its definition.
    pub at: SourceLocation,
}

/// Loads the skills of the folders, sorted by name. Of skills with the same name the first is used.
pub(super) fn load(folders: &[DefinitionFolder], problems: &mut Vec<Problem>) -> Vec<SkillEntry> {
    let mut skills: Vec<SkillEntry> = Vec::new();
    let files = folders.iter().filter(|folder| folder.kind == FolderKind::Skills).flat_map(|folder| &folder.files);
    for (path, text) in files {
        let file: Arc<Path> = Arc::from(path.as_path());
        let Some(entry) = (match text {
            Ok(text) => read(text, &file, problems),
            Err(why) => {
                let remedy = "give it the text of a skill, or remove it";
                problems.push(Problem::with_file(Severity::EntryDisabled, path, why.clone(), remedy));
                None
            }
        }) else {
            continue;
        };
        if let Some(first) = skills.iter().find(|first| first.skill.name == entry.skill.name) {
            let message = format!("the skill `{}` of {} is used instead", entry.skill.name, first.at.file.display());
            problems.push(Problem::new(Severity::Warning, &entry.at, "name", message, "rename or remove one of them"));
            continue;
        }
        skills.push(entry);
    }
    skills.sort_by(|a, b| a.skill.name.cmp(&b.skill.name));
    skills
}

/// Reads the file of a skill; `None` if it is unusable, or no model may load it.
fn read(text: &str, file: &Arc<Path>, problems: &mut Vec<Problem>) -> Option<SkillEntry> {
    let out = Severity::EntryDisabled;
    let (front, body) = match split(text) {
        Ok(parts) => parts,
        Err(why) => {
            let remedy = "begin it with `---`, the lines `name: ...` and `description: ...`, and `---`";
            problems.push(Problem::with_file(out, file, why, remedy));
            return None;
        }
    };
    let mut node =
        front_matter(front, file).map_err(|problem| problems.push(Problem { severity: out, ..problem })).ok()?;
    let Data::Map(members) = &mut node.data else {
        let message = format!("its front matter holds {}, where a mapping belongs", node.kind());
        problems.push(Problem::new(out, &node.at, "", message, "write lines like `name: release-notes`"));
        return None;
    };
    for member in members {
        member.key = snake_case(&member.key).replace('-', "_");
    }
    check_keys(&node, problems);
    let member = |key: &str| node.get(key).map(|member| (member.at.clone(), member.value.text().map(str::trim)));
    if node.get("disable_model_invocation").is_some_and(|member| member.value.data == Data::Bool(true)) {
        return None;
    }
    // A skill without a name has that of its folder.
    let folder = file.parent().unwrap_or(file);
    let stem = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (at, written) = match member("name") {
        Some((at, Some(name))) if !name.is_empty() => (at, name.to_owned()),
        Some((at, _)) => (at, stem),
        None => (node.at.clone(), stem),
    };
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let name = match !written.is_empty() && written.chars().all(is_legal) && written.len() <= MAX_SKILL_NAME {
        true => written.clone(),
        false => legal_name(&written).replace('_', "-"),
    };
    if name.is_empty() {
        let message = format!("`{written}` is not the name of a skill");
        problems.push(Problem::new(out, &at, "name", message, "use lower-case letters, digits and `-`"));
        return None;
    }
    if name != written {
        let message = format!("the skill `{written}` is called `{name}` here");
        let remedy = format!("a name has 1 to {MAX_SKILL_NAME} lower-case letters, digits and `-`");
        problems.push(Problem::new(Severity::Warning, &at, "name", message, remedy));
    }
    let texts = ["description", "when_to_use"].map(|key| member(key).and_then(|(_, text)| text).unwrap_or_default());
    let mut description = texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
    if description.is_empty() {
        let at = member("description").map_or_else(|| node.at.clone(), |(at, _)| at);
        let message = "it has no description: a model cannot tell when to load it".to_owned();
        problems.push(Problem::new(out, &at, "description", message, "say what it is for and when to load it"));
        return None;
    }
    if description.chars().count() > MAX_SKILL_DESCRIPTION {
        let at = member("description").map_or_else(|| node.at.clone(), |(at, _)| at);
        let message = format!("the description has more than {MAX_SKILL_DESCRIPTION} characters, and is cut there");
        problems.push(Problem::new(Severity::Warning, &at, "description", message, "put the rest into the text"));
        description = description.chars().take(MAX_SKILL_DESCRIPTION).collect();
    }
    let text = body.trim().replace(FOLDER_VARIABLE, &folder.to_string_lossy());
    if text.is_empty() || text.len() > MAX_SKILL_TEXT {
        let (message, remedy) = match text.is_empty() {
            true => ("it has no instructions".to_owned(), "write them after the front matter"),
            false => (
                format!("its text has {} bytes, and may have {MAX_SKILL_TEXT}", text.len()),
                "move parts of it into other files of the folder, and name them in the text",
            ),
        };
        problems.push(Problem::with_file(out, file, message, remedy));
        return None;
    }
    let skill = Skill { name, description, text, folder: folder.to_owned() };
    Some(SkillEntry { skill, at })
}

/// Reports keys that have no effect here.
fn check_keys(node: &Node, problems: &mut Vec<Problem>) {
    let Data::Map(members) = &node.data else { return };
    for member in members {
        let key = member.key.as_str();
        let (message, remedy) = match key {
            "allowed_tools" => continue,
            "hooks" => ("hooks do not run".to_owned(), "write rules under `policy.rules`, or remove it".to_owned()),
            _ if KEYS.contains(&key) || OTHER_KEYS.contains(&key) => continue,
            _ => match nearest(key, KEYS) {
                Some(near) => ("there is no such key".to_owned(), format!("did you mean `{near}`?")),
                None => continue,
            },
        };
        problems.push(Problem::new(Severity::Warning, &member.at, key, message, remedy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Option<(&str, &str, &str)>, reported: &[(&str, u32)]) {
        let (path, mut problems) = (Path::new("/p/skills/zip-it/SKILL.md"), Vec::new());
        let files = vec![(path.to_owned(), Ok(text.to_owned()))];
        let skills = load(&[DefinitionFolder { kind: FolderKind::Skills, files }], &mut problems);
        let found = skills.first().map(|entry| &entry.skill);
        let found = found.map(|skill| (skill.name.as_str(), skill.description.as_str(), skill.text.as_str()));
        assert_eq!(found, expect, "{text}: {problems:?}");
        assert_eq!(problems.len(), reported.len(), "{text}: {problems:?}");
        for (problem, (words, line)) in problems.iter().zip(reported) {
            assert!(problem.message.contains(words), "{text}: {problem:?}");
            assert_eq!((problem.line.unwrap_or(0), problem.file.as_deref()), (*line, Some(path)), "{text}");
        }
    }

    #[test]
    fn skills_are_read_and_faults_have_lines() {
        let zip = Some(("zip-it", "Packs: files.", "Use tar."));
        let long = format!("---\ndescription: A.\n---\n{}", "x".repeat(MAX_SKILL_TEXT + 1));
        check(
            "---\nname: zip-it\ndescription: Packs: files.\nlicense: MIT\nallowed-tools: Bash\n---\nUse tar.\n",
            zip,
            &[],
        );
        check("---\ndescription: Packs: files.\n---\nUse tar.", zip, &[]);
        check(
            "---\nname: Zip It\ndescription: Packs.\n---\nIn ${CLAUDE_SKILL_DIR}/x.",
            Some(("zip-it", "Packs.", "In /p/skills/zip-it/x.")),
            &[("is called `zip-it`", 2)],
        );
        check("---\nname: zip-it\ndescription: A.\nwhen_to_use: B.\n---\nC", Some(("zip-it", "A. B.", "C")), &[]);
        check("---\ndescription: A.\ndisable-model-invocation: true\n---\nC", None, &[]);
        check("---\nname: zip-it\ndescriptoin: A.\n---\nC", None, &[("no such key", 3), ("no description", 2)]);
        check("---\nname: zip-it\ndescription: [\n---\nC", None, &[("", 3)]);
        check("---\ndescription: A.\n---\n", None, &[("no instructions", 0)]);
        check(&long, None, &[("may have 65536", 0)]);
        check("Use tar.", None, &[("", 0)]);
    }
}
