//! Differences of texts: unified hunks, and the block of a file that is nearest to a text that was not found. Pure.

use std::collections::HashMap;

use similar::{Algorithm, DiffTag, capture_diff_slices, diff_ratio, group_diff_ops};

/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;
/// The most characters of a line that are shown.
const MAX_LINE: usize = 200;
/// The most lines of a difference that are shown.
const MAX_LINES: usize = 400;
/// The most lines of the wanted text that are compared.
const MAX_WANTED: usize = 60;
/// The most blocks of a file that are compared in full.
const MAX_BLOCKS: usize = 40;
/// The most lines of a file, and bytes of each, that are compared with one line.
const MAX_SCANNED: (usize, usize) = (4000, 400);
/// The least similarity of a block that is shown, from 0 to 1.
const MIN_SIMILARITY: f32 = 0.5;

/// Returns the unified difference of two contents of a file; empty if they are equal.
pub(in crate::builtin::fs) fn unified(name: &str, old: &[u8], new: &[u8]) -> String {
    let body = hunks(&lines(old), &lines(new), 1, CONTEXT_LINES);
    if body.is_empty() { body } else { format!("--- {name}\n+++ {name}\n{body}") }
}

/// Returns the block of `bytes` that is most similar to `wanted`, as a difference from `wanted`, with the number of its
/// first line; `None` if no block is similar enough.
pub(super) fn nearest_block(bytes: &[u8], wanted: &str) -> Option<(usize, String)> {
    let file = lines(bytes);
    let wanted: Vec<&[u8]> = lines(wanted.as_bytes()).into_iter().take(MAX_WANTED).collect();
    let mut best: Option<(f32, usize)> = None;
    for start in candidates(&file, &wanted) {
        let block = &file[start..(start + wanted.len()).min(file.len())];
        let score = similarity(block, &wanted);
        if score >= MIN_SIMILARITY && best.is_none_or(|(least, _)| score > least) {
            best = Some((score, start));
        }
    }
    let (_, start) = best?;
    let block = &file[start..(start + wanted.len()).min(file.len())];
    Some((start + 1, hunks(&wanted, block, start + 1, wanted.len())))
}

/// Returns the starts of the blocks that share most lines with the wanted ones, ignoring spaces around them. If there
/// are none, returns those with the line most similar to the longest wanted one.
fn candidates(file: &[&[u8]], wanted: &[&[u8]]) -> Vec<usize> {
    let mut places: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (place, line) in wanted.iter().enumerate().filter(|(_, line)| line.trim_ascii().len() > 2) {
        places.entry(line.trim_ascii()).or_default().push(place);
    }
    let mut votes: HashMap<usize, usize> = HashMap::new();
    for (at, line) in file.iter().enumerate() {
        for place in places.get(line.trim_ascii()).into_iter().flatten() {
            *votes.entry(at.saturating_sub(*place)).or_default() += 1;
        }
    }
    if !votes.is_empty() {
        let mut starts: Vec<usize> = votes.keys().copied().collect();
        starts.sort_unstable_by_key(|start| (std::cmp::Reverse(votes[start]), *start));
        starts.truncate(MAX_BLOCKS);
        return starts;
    }
    let Some((place, longest)) = wanted.iter().enumerate().max_by_key(|(_, line)| line.trim_ascii().len()) else {
        return Vec::new();
    };
    let longest = &longest.trim_ascii()[..longest.trim_ascii().len().min(MAX_SCANNED.1)];
    let scanned = file.iter().enumerate().filter(|(_, line)| {
        let length = line.trim_ascii().len();
        length <= MAX_SCANNED.1 && length * 2 >= longest.len() && longest.len() * 2 >= length
    });
    let scored = scanned.take(MAX_SCANNED.0).map(|(at, line)| (line_ratio(line, longest), at));
    let best = scored.max_by(|(one, a), (other, b)| one.total_cmp(other).then(b.cmp(a)));
    best.map(|(_, at)| at.saturating_sub(place)).into_iter().collect()
}

/// Returns the similarity of two blocks, line by line.
fn similarity(block: &[&[u8]], wanted: &[&[u8]]) -> f32 {
    let all = wanted.len().max(1) as f32;
    block.iter().zip(wanted).map(|(one, other)| line_ratio(one, other)).sum::<f32>() / all
}

fn line_ratio(one: &[u8], other: &[u8]) -> f32 {
    let [one, other] = [one, other].map(<[u8]>::trim_ascii);
    if one == other {
        return 1.0;
    }
    if one.len().max(other.len()) > MAX_SCANNED.1 {
        return 0.0;
    }
    diff_ratio(&capture_diff_slices(Algorithm::Myers, one, other), one.len(), other.len())
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').collect()
}

/// Returns hunks from `old` to `new`, whose lines are counted from `first`.
fn hunks(old: &[&[u8]], new: &[&[u8]], first: usize, around: usize) -> String {
    let mut out = String::new();
    let mut shown = 0;
    for group in group_diff_ops(capture_diff_slices(Algorithm::Myers, old, new), around) {
        let (Some(begin), Some(end)) = (group.first(), group.last()) else { continue };
        if shown >= MAX_LINES {
            out.push_str("[… the rest of the difference is not shown]\n");
            break;
        }
        let range = |from: usize, to: usize| format!("{},{}", from + first, to - from);
        out.push_str(&format!(
            "@@ -{} +{} @@\n",
            range(begin.old_range().start, end.old_range().end),
            range(begin.new_range().start, end.new_range().end)
        ));
        for op in group {
            let (gone, come) = (&old[op.old_range()], &new[op.new_range()]);
            if op.tag() == DiffTag::Equal {
                gone.iter().for_each(|line| push_line(&mut out, ' ', line));
            } else {
                gone.iter().take(MAX_LINES).for_each(|line| push_line(&mut out, '-', line));
                come.iter().take(MAX_LINES).for_each(|line| push_line(&mut out, '+', line));
            }
            shown += gone.len().max(come.len());
        }
    }
    out
}

fn push_line(out: &mut String, sign: char, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let (text, ended) = text.strip_suffix('\n').map_or((&*text, false), |text| (text, true));
    let end = text.floor_char_boundary(MAX_LINE);
    out.push(sign);
    out.push_str(&text[..end]);
    if end < text.len() {
        out.push_str(&format!("[… {} bytes more]", text.len() - end));
    }
    out.push('\n');
    if !ended {
        out.push_str("\\ No newline at end of file\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_unified() {
        for (old, new, expect) in [
            ("a\n", "a\n", ""),
            ("a\nb\n", "a\nc\n", "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
            (
                "a\nb",
                "a\nc",
                "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n",
            ),
            ("", "a\n", "--- f\n+++ f\n@@ -1,0 +1,1 @@\n+a\n"),
        ] {
            assert_eq!(unified("f", old.as_bytes(), new.as_bytes()), expect);
        }
    }

    #[test]
    fn nearest_block_is_shown() {
        let file = "fn one() {\n    1\n}\n\nfn two() {\n    let x = 2;\n    x\n}\n";
        let (line, diff) = nearest_block(file.as_bytes(), "fn two() {\n    let y = 2;\n    x\n").expect("found");
        assert_eq!(line, 5);
        assert_eq!(diff, "@@ -5,3 +5,3 @@\n fn two() {\n-    let y = 2;\n+    let x = 2;\n     x\n");
        assert_eq!(nearest_block(file.as_bytes(), "    let xyz = 2;\n").map(|(line, _)| line), Some(6));
        assert_eq!(nearest_block(file.as_bytes(), "something else entirely"), None);
    }
}
