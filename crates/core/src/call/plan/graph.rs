//! Orders calls that read and write values: computes the dependencies for which the result equals that of running them
//! one after another in written order.

use hashbrown::HashMap;

use crate::call::variables::overlap;

/// The paths that a call reads and writes, as lists of names.
#[derive(Debug, Clone, Default)]
pub struct Node<'a> {
    /// Paths of its references.
    pub reads: Vec<Vec<&'a str>>,
    /// Paths of its scopes, read as they are when it starts.
    pub sees: Vec<Vec<&'a str>>,
    /// The path of its output.
    pub writes: Option<Write<'a>>,
    /// Its instance; `None` for all instances.
    pub instance: Option<&'a str>,
    /// Whether it also reads something other than these calls' outputs.
    pub reads_elsewhere: bool,
}

/// The destination of an output.
#[derive(Debug, Clone)]
pub struct Write<'a> {
    /// The path.
    pub path: Vec<&'a str>,
    /// Whether it replaces everything at the path.
    pub replaces: bool,
}

/// Why a call waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DependencyKind {
    /// The reader needs the other's output.
    Value,
    /// Both use the same path, and the other comes first.
    Order,
}

/// A dependency: one call waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// The call that must end first.
    pub from: usize,
    /// The call that waits.
    pub to: usize,
    /// Why.
    pub wait: DependencyKind,
}

/// The edges among calls, by their places in written order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    size: usize,
    edges: Vec<Edge>,
    /// Calls that read a path that no other call is known to write.
    open: Vec<usize>,
}

impl Graph {
    /// Calls that do not wait for each other.
    #[must_use]
    pub fn independent(size: usize) -> Self {
        Self { size, ..Self::default() }
    }

    /// The edges among `nodes`. A path overlaps those above and below it.
    ///
    /// A call reads what the calls before it wrote at the path, back to the last that replaced it; where none before it
    /// writes there, it waits for all those behind it that do. A scope shows the outputs of the calls before it. Calls
    /// that write to one path run in written order, and a call that writes to a path that an earlier call reads waits
    /// for that call.
    ///
    /// A call for an instance reads outputs for that instance and for all; a call for all reads only the latter.
    #[must_use]
    pub fn of(nodes: &[Node<'_>]) -> Self {
        let (mut edges, mut open) = (Vec::new(), Vec::new());
        let writers: Vec<CallWrite<'_>> = nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| {
                Some(CallWrite { index, write: node.writes.as_ref()?, instance: node.instance })
            })
            .collect();
        // Writers visible to an instance: those for it, and those for all.
        let mut met: HashMap<Option<&str>, Vec<&CallWrite<'_>>> = HashMap::new();
        for node in nodes {
            let of = |instance: Option<&str>| {
                writers.iter().filter(|writer| writer.instance.is_none() || writer.instance == instance).collect()
            };
            met.entry(node.instance).or_insert_with(|| of(node.instance));
        }
        let all: Vec<&CallWrite<'_>> = writers.iter().collect();
        for later in &writers {
            let near = if later.instance.is_none() { &all } else { &met[&later.instance] };
            let earlier = near.iter().take_while(|earlier| earlier.index < later.index);
            let earlier = earlier.filter(|earlier| overlap(&earlier.write.path, &later.write.path));
            edges.extend(earlier.map(|earlier| Edge {
                from: earlier.index,
                to: later.index,
                wait: DependencyKind::Order,
            }));
        }
        for (reader, node) in nodes.iter().enumerate() {
            let mut is_open = node.reads_elsewhere;
            let met = &met[&node.instance];
            for path in &node.reads {
                let near = || met.iter().copied().filter(|writer| overlap(&writer.write.path, path));
                is_open |= near().next().is_none();
                let found = edges_to(reader, path, near().rev(), &mut edges);
                for CallWrite { index, .. } in near().filter(|writer| writer.index >= reader) {
                    let others = near().any(|other| other.index != reader);
                    if found && *index > reader {
                        edges.push(Edge { from: reader, to: *index, wait: DependencyKind::Order });
                    } else if !found && (*index != reader || !others) {
                        edges.push(Edge { from: *index, to: reader, wait: DependencyKind::Value });
                    }
                }
            }
            for path in &node.sees {
                let near = || met.iter().copied().filter(|writer| overlap(&writer.write.path, path));
                edges_to(reader, path, near().rev(), &mut edges);
                let later = near().filter(|writer| writer.index > reader);
                edges.extend(later.map(|later| Edge { from: reader, to: later.index, wait: DependencyKind::Order }));
            }
            if is_open {
                open.push(reader);
            }
        }
        edges.sort_unstable();
        // A call that waits for a value waits for the order, too.
        edges.dedup_by_key(|edge| (edge.from, edge.to));
        Self { size: nodes.len(), edges, open }
    }

    /// The edges among the first `count` calls.
    #[must_use]
    pub(super) fn of_first(mut self, count: usize) -> Self {
        self.edges.retain(|edge| edge.from < count && edge.to < count);
        self.open.retain(|index| *index < count);
        Self { size: self.size.min(count), ..self }
    }

    /// The number of calls.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The edges, by their ends.
    #[must_use]
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Whether a call reads a path that no other call is known to write: any running call may still write it.
    #[must_use]
    pub fn is_open(&self, index: usize) -> bool {
        self.open.binary_search(&index).is_ok()
    }

    /// Returns the calls whose outputs a call reads.
    pub fn producers(&self, of: usize) -> impl Iterator<Item = usize> {
        self.edges.iter().filter(move |edge| edge.to == of && edge.wait == DependencyKind::Value).map(|edge| edge.from)
    }

    /// Returns a cycle of calls, each waiting for the one before it and the first for the last; `None` if all can run.
    #[must_use]
    pub fn cycle(&self) -> Option<Vec<usize>> {
        let mut schedule = Schedule::of(self);
        let mut ready = schedule.ready();
        let mut left: Vec<bool> = vec![true; self.size];
        while let Some(index) = ready.pop() {
            left[index] = false;
            ready.extend(schedule.ended(index));
        }
        // Each remaining call waits for another remaining one, so following them back from any call leads into a cycle.
        let mut visited = Vec::new();
        let mut at = left.iter().position(|left| *left)?;
        loop {
            if let Some(start) = visited.iter().position(|seen| *seen == at) {
                let mut circle = visited.split_off(start);
                circle.reverse();
                return Some(circle);
            }
            visited.push(at);
            at = self.edges.iter().find(|edge| edge.to == at && left[edge.from])?.from;
        }
    }

    /// Groups the calls into levels: each call is in the first level after all calls that it waits for. Calls in a
    /// cycle are in no level.
    #[must_use]
    pub fn levels(&self) -> Vec<Vec<usize>> {
        let mut schedule = Schedule::of(self);
        let mut levels = Vec::new();
        let mut ready = schedule.ready();
        while !ready.is_empty() {
            ready.sort_unstable();
            let next = ready.iter().flat_map(|index| schedule.ended(*index)).collect();
            levels.push(std::mem::replace(&mut ready, next));
        }
        levels
    }
}

/// A call that writes.
struct CallWrite<'a> {
    index: usize,
    write: &'a Write<'a>,
    instance: Option<&'a str>,
}

/// Adds edges from the writers before a call, the newest first, back to the last that replaced the value. Returns
/// whether there are any.
fn edges_to<'a>(
    reader: usize,
    path: &[&str],
    newest_first: impl Iterator<Item = &'a CallWrite<'a>>,
    edges: &mut Vec<Edge>,
) -> bool {
    let before = edges.len();
    for CallWrite { index, write, .. } in newest_first.filter(|writer| writer.index < reader) {
        edges.push(Edge { from: *index, to: reader, wait: DependencyKind::Value });
        if write.replaces && path.starts_with(&write.path) {
            break;
        }
    }
    edges.len() > before
}

/// The calls of a graph as they end: which can start.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    /// For each call, the number of calls that it still waits for.
    waits: Vec<usize>,
    /// For each call, the calls that wait for it.
    next: Vec<Vec<usize>>,
}

impl Schedule {
    /// Creates the schedule, before any call has started.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        let mut schedule = Self { waits: vec![0; graph.size], next: vec![Vec::new(); graph.size] };
        for edge in &graph.edges {
            schedule.waits[edge.to] += 1;
            schedule.next[edge.from].push(edge.to);
        }
        schedule
    }

    /// Returns the calls without dependencies.
    #[must_use]
    pub fn ready(&self) -> Vec<usize> {
        (0..self.waits.len()).filter(|index| self.waits[*index] == 0).collect()
    }

    /// Records the end of a call. Returns the calls that can start now, in written order.
    pub fn ended(&mut self, index: usize) -> Vec<usize> {
        let next = self.next.get_mut(index).map(std::mem::take).unwrap_or_default();
        let mut ready = Vec::new();
        for waiting in next {
            self.waits[waiting] -= 1;
            if self.waits[waiting] == 0 {
                ready.push(waiting);
            }
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses calls written as `reads > writes`; `+path` appends, `?path` is a scope, `①: ` precedes a call for an
    /// instance.
    fn graph(calls: &[&'static str]) -> Graph {
        let path = |text: &'static str| text.split('.').collect::<Vec<_>>();
        let node = |call: &&'static str| {
            let (instance, call) = call.split_once(": ").map_or((None, *call), |(name, call)| (Some(name), call));
            let (reads, writes) = call.split_once('>').unwrap_or((call, ""));
            let is_scope = |text: &&str| text.starts_with('?');
            let writes = writes.trim();
            let write = |text: &'static str| Write { path: path(text), replaces: true };
            Node {
                reads: reads.split_whitespace().filter(|text| !is_scope(text)).map(path).collect(),
                sees: reads.split_whitespace().filter_map(|text| text.strip_prefix('?')).map(path).collect(),
                instance,
                writes: match writes.strip_prefix('+') {
                    Some(added) => Some(Write { replaces: false, ..write(added) }),
                    None => (!writes.is_empty()).then(|| write(writes)),
                },
                reads_elsewhere: false,
            }
        };
        Graph::of(&calls.iter().map(node).collect::<Vec<_>>())
    }

    fn check(calls: &[&'static str], values: &[(usize, usize)], order: &[(usize, usize)]) {
        let graph = graph(calls);
        let of = |wait| -> Vec<_> {
            graph.edges().iter().filter(|edge| edge.wait == wait).map(|edge| (edge.from, edge.to)).collect()
        };
        assert_eq!(
            (of(DependencyKind::Value), of(DependencyKind::Order)),
            (values.to_vec(), order.to_vec()),
            "{calls:?}"
        );
    }

    #[test]
    fn calls_wait_for_what_they_read() {
        check(&["> a", "> b", "a.x b > c"], &[(0, 2), (1, 2)], &[]);
        check(&["> a.b", "> a.c", "a"], &[(0, 2), (1, 2)], &[]);
        check(&["> a", "> ab", "ab"], &[(1, 2)], &[]);
        check(&["b > a", "> b"], &[(1, 0)], &[]);
        check(&["none", "> a", "a"], &[(1, 2)], &[]);
        let graph = graph(&["none", "> a", "a"]);
        assert!(graph.is_open(0) && !graph.is_open(1) && !graph.is_open(2));
    }

    #[test]
    fn writers_of_one_path_keep_written_order() {
        check(&["> a", "> a"], &[], &[(0, 1)]);
        check(&["> a", "a", "> a", "a"], &[(0, 1), (2, 3)], &[(0, 2), (1, 2)]);
        check(&["> +a", "> +a", "a", "> +a"], &[(0, 2), (1, 2)], &[(0, 1), (0, 3), (1, 3), (2, 3)]);
        check(&["> a", "> a.b", "a.c"], &[(0, 2)], &[(0, 1)]);
        check(&["a", "> a", "> +a"], &[(1, 0), (2, 0)], &[(1, 2)]);
        check(&["> a", "a > a"], &[(0, 1)], &[]);
    }

    #[test]
    fn instances_meet_only_at_what_is_shared() {
        check(&["①: > a", "②: > a", "①: a", "②: a"], &[(0, 2), (1, 3)], &[]);
        check(&["> a", "①: > a", "②: a", "a"], &[(0, 2), (0, 3)], &[(0, 1)]);
        check(&["①: > a", "a", "> a"], &[(2, 1)], &[(0, 2)]);
        assert_eq!(graph(&["①: b > a", "②: a > b"]).cycle(), None);
        assert!(graph(&["①: > a", "②: a"]).is_open(1));
    }

    #[test]
    fn scopes_show_what_was_written_before() {
        check(&["> a", "?a", "> a"], &[(0, 1)], &[(0, 2), (1, 2)]);
        check(&["?a", "> a"], &[], &[(0, 1)]);
        check(&["> a", "①: > b", "②: ?a.x", "? > c"], &[(0, 2)], &[]);
        assert!(!graph(&["?none"]).is_open(0));
    }

    #[test]
    fn plan_cycles_are_found() {
        assert_eq!(graph(&["b > a", "a > b"]).cycle(), Some(vec![1, 0]));
        assert_eq!(graph(&["> x", "a > a"]).cycle(), Some(vec![1]));
        assert_eq!(graph(&["c > a", "a > b", "b > c", "a"]).cycle().map(|circle| circle.len()), Some(3));
        assert_eq!(graph(&["> a", "a > b", "b"]).cycle(), None);
    }

    #[test]
    fn plan_levels_contain_parallel_calls() {
        assert_eq!(graph(&["> a", "> b", "a b > c", "", "c"]).levels(), [vec![0, 1, 3], vec![2], vec![4]]);
        assert_eq!(graph(&["b > a", "a > b", ""]).levels(), [vec![2]]);
    }
}
