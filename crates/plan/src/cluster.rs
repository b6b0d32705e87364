//! Division of reads among the nodes of a group: which node reads what several of them want. Pure.
//!
//! ```text
//!  tensors   [   a   ][   b   ][   c   ][   d   ][   e   ]
//!  node 0     #######  #######  #######  ####
//!  node 4     #######  #######  #######      ###  #######
//!  read by    node 0   node 4   node 0    each    node 4
//! ```
//!
//! Nodes are known by their leaders' ranks. The result does not depend on the order of the nodes,
//! so every leader computes the same one.

use std::collections::BTreeMap;
use std::ops::Range;

/// Neighbouring ranges of the same nodes have one owner up to this length together, bytes: long
/// enough for few reads and messages, short enough that nodes which go through the file in order
/// read at the same time.
const UNIT_BYTES: u64 = 16 << 20;

/// Bytes that one node wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWants {
    /// Rank that leads the node.
    pub leader: usize,
    /// Ranges, each with its source: ascending and disjoint.
    pub ranges: Vec<(usize, Range<u64>)>,
}

/// Bytes of one tensor that one node reads for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointRange {
    /// Index of the tensor in the checkpoint.
    pub tensor: usize,
    /// Index of its source.
    pub source: usize,
    /// Range in the source.
    pub range: Range<u64>,
    /// Node that reads it: one of `nodes`.
    pub owner: usize,
    /// Nodes that want bytes of it, ascending.
    pub nodes: Vec<usize>,
}

/// Bytes of one tensor that one node wants.
#[derive(Clone, Debug)]
struct Want {
    tensor: usize,
    range: Range<u64>,
    node: usize,
}

/// Divides what nodes want of `tensors`, each with its source and its range there, in file order.
/// Returns the ranges that several nodes want, in that order; each node reads the rest of its wants
/// itself.
///
/// Wants of one tensor that overlap are one range if each node wants at least 4/5 of it, such as
/// the columns of a matrix that lie between each other; else each node reads its own. An owner is
/// the node with the least to read so far, of those that want the range.
///
/// With `whole_sources`, nodes share what they want of a source only if they want the same of it,
/// and all of it has one owner: what one node reads can then be compared with digests as if it were
/// alone.
pub fn divide(
    tensors: &[(usize, Range<u64>)],
    nodes: &[NodeWants],
    whole_sources: bool,
) -> Vec<JointRange> {
    let mut common = Vec::new();
    // Bytes that each node reads, and by node the ranges that no other node wants.
    let mut load: BTreeMap<usize, u64> = nodes.iter().map(|node| (node.leader, 0)).collect();
    let mut own = Vec::new();
    let wants = sorted_wants(tensors, nodes);
    let mut rest = &wants[..];
    while let Some(first) = rest.first() {
        let (cluster, range) = first_cluster(rest);
        rest = &rest[cluster.len()..];
        match joint_nodes(cluster, &range) {
            Some(nodes) => common.push(JointRange {
                tensor: first.tensor,
                source: tensors[first.tensor].0,
                range,
                owner: first.node,
                nodes,
            }),
            None => own.extend_from_slice(cluster),
        }
    }
    let units = if whole_sources {
        whole_units(tensors, &mut common, &own)
    } else {
        short_units(&common)
    };
    for want in own {
        *load.entry(want.node).or_default() += length(&want.range);
    }
    for unit in units {
        let bytes: u64 = unit.iter().map(|index| length(&common[*index].range)).sum();
        let nodes = common[unit[0]].nodes.iter().copied();
        let owner = nodes
            .min_by_key(|node| (load[node], *node))
            .expect("several nodes want it");
        *load.entry(owner).or_default() += bytes;
        for index in unit {
            common[index].owner = owner;
        }
    }
    common
}

/// Returns the wants by tensor and offset.
fn sorted_wants(tensors: &[(usize, Range<u64>)], nodes: &[NodeWants]) -> Vec<Want> {
    let mut wants = Vec::new();
    for node in nodes {
        let mut ranges = &node.ranges[..];
        for (tensor, (source, span)) in tensors.iter().enumerate() {
            let is_before =
                |(other, range): &(usize, Range<u64>)| (*other, range.end) <= (*source, span.start);
            let before = ranges.iter().take_while(|range| is_before(range)).count();
            ranges = &ranges[before..];
            let here =
                |(other, range): &&(usize, Range<u64>)| other == source && range.start < span.end;
            wants.extend(ranges.iter().take_while(here).map(|(_, range)| Want {
                tensor,
                range: range.start.max(span.start)..range.end.min(span.end),
                node: node.leader,
            }));
        }
    }
    wants.retain(|want| !want.range.is_empty());
    wants.sort_by_key(|want| (want.tensor, want.range.start, want.node));
    wants
}

/// Returns the wants at the beginning of `wants` that overlap, and the range of all of them.
fn first_cluster(wants: &[Want]) -> (&[Want], Range<u64>) {
    let Want { tensor, range, .. } = &wants[0];
    let mut end = range.end;
    let mut len = 1;
    for want in &wants[1..] {
        if want.tensor != *tensor || want.range.start >= end {
            break;
        }
        end = end.max(want.range.end);
        len += 1;
    }
    (&wants[..len], range.start..end)
}

/// Returns the nodes of a cluster if they are several and each wants most of it.
fn joint_nodes(cluster: &[Want], range: &Range<u64>) -> Option<Vec<usize>> {
    let mut bytes = BTreeMap::<usize, u64>::new();
    for want in cluster {
        *bytes.entry(want.node).or_default() += length(&want.range);
    }
    let is_most = |bytes: &u64| *bytes >= length(range) / 5 * 4;
    (bytes.len() > 1 && bytes.values().all(is_most)).then(|| bytes.into_keys().collect())
}

/// Groups neighbouring ranges of the same nodes.
fn short_units(common: &[JointRange]) -> Vec<Vec<usize>> {
    let mut units: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, next) in common.iter().enumerate() {
        let is_alike = |last: &usize| {
            let last = &common[*last];
            last.source == next.source && last.nodes == next.nodes
        };
        match units.last_mut() {
            Some(unit)
                if unit.last().is_some_and(is_alike)
                    && bytes + length(&next.range) <= UNIT_BYTES =>
            {
                unit.push(index);
                bytes += length(&next.range);
            }
            _ => {
                units.push(vec![index]);
                bytes = length(&next.range);
            }
        }
    }
    units
}

/// Groups the ranges of a source by the nodes that want the same of it, and removes the others.
fn whole_units(
    tensors: &[(usize, Range<u64>)],
    common: &mut Vec<JointRange>,
    own: &[Want],
) -> Vec<Vec<usize>> {
    // Everything that a node would take from others, by source and node.
    let mut taken = BTreeMap::<(usize, usize), Vec<(u64, u64)>>::new();
    for range in &*common {
        for node in &range.nodes {
            let key = (range.source, *node);
            let ends = (range.range.start, range.range.end);
            taken.entry(key).or_default().push(ends);
        }
    }
    for want in own {
        taken.remove(&(tensors[want.tensor].0, want.node));
    }
    let is_alike = |source: usize, one: usize, other: usize| {
        let taken = |node: usize| taken.get(&(source, node));
        taken(one).is_some() && taken(one) == taken(other)
    };
    let mut split = Vec::new();
    for range in common.drain(..) {
        let mut left = range.nodes.clone();
        while let Some(first) = left.first().copied() {
            let alike = |node: &usize| *node == first || is_alike(range.source, first, *node);
            let (nodes, others): (Vec<usize>, Vec<usize>) = left.into_iter().partition(alike);
            if nodes.len() > 1 {
                let range = range.clone();
                split.push(JointRange { nodes, ..range });
            }
            left = others;
        }
    }
    *common = split;
    let mut units = BTreeMap::<(usize, &[usize]), Vec<usize>>::new();
    for (index, range) in common.iter().enumerate() {
        let key = (range.source, &range.nodes[..]);
        units.entry(key).or_default().push(index);
    }
    units.into_values().collect()
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns tensors of these lengths in each source, behind headers of 100 bytes.
    fn tensors(sources: &[&[u64]]) -> Vec<(usize, Range<u64>)> {
        let mut tensors = Vec::new();
        for (source, lengths) in sources.iter().enumerate() {
            let mut at = 100;
            for length in *lengths {
                tensors.push((source, at..at + length));
                at += length;
            }
        }
        tensors
    }

    fn node(leader: usize, ranges: &[(usize, Range<u64>)]) -> NodeWants {
        NodeWants {
            leader,
            ranges: ranges.to_vec(),
        }
    }

    fn owners(common: &[JointRange]) -> Vec<(usize, usize)> {
        common.iter().map(|it| (it.tensor, it.owner)).collect()
    }

    #[test]
    fn nodes_that_want_everything_take_turns() {
        let tensors = tensors(&[&[20 * MIB, 20 * MIB, 20 * MIB], &[20 * MIB]]);
        let all = [(0, 0..100 * MIB), (1, 0..100 * MIB)];
        let common = divide(&tensors, &[node(0, &all), node(8, &all)], false);
        assert_eq!(owners(&common), [(0, 0), (1, 8), (2, 0), (3, 8)]);
        assert!(common.iter().all(|it| it.nodes == [0, 8]));
    }

    #[test]
    fn small_neighbours_have_one_owner() {
        let tensors = tensors(&[&[MIB; 40]]);
        let all = [(0, 0..100 * MIB)];
        let common = divide(&tensors, &[node(0, &all), node(1, &all)], false);
        let owner = |index: usize| common[index].owner;
        assert_eq!((owner(0), owner(15), owner(16), owner(32)), (0, 0, 1, 0));
    }

    #[test]
    fn columns_between_each_other_are_one_range_and_halves_are_not() {
        let tensors = tensors(&[&[10 * MIB]]);
        let left = node(0, &[(0, 100..10 * MIB)]);
        let right = node(4, &[(0, 4096..10 * MIB + 100)]);
        let common = divide(&tensors, &[left, right], false);
        assert_eq!(common[0].range, 100..10 * MIB + 100);
        let first = node(0, &[(0, 100..6 * MIB)]);
        let second = node(4, &[(0, 4 * MIB..10 * MIB + 100)]);
        assert_eq!(divide(&tensors, &[first, second], false), []);
    }

    #[test]
    fn node_with_more_of_its_own_reads_less_for_others() {
        let tensors = tensors(&[&[20 * MIB, 20 * MIB, 20 * MIB]]);
        let all = node(0, &[(0, 0..100 * MIB)]);
        let most = node(1, &[(0, 0..40 * MIB + 100)]);
        let common = divide(&tensors, &[all, most], false);
        assert_eq!(owners(&common), [(0, 1), (1, 0)]);
    }

    #[test]
    fn whole_sources_are_shared_by_nodes_that_want_the_same_of_them() {
        let tensors = tensors(&[&[MIB, MIB], &[MIB], &[2 * MIB]]);
        let all = [(0, 0..9 * MIB), (1, 0..9 * MIB), (2, 0..9 * MIB)];
        let less = [(0, 0..MIB + 100), (1, 0..9 * MIB), (2, 0..9 * MIB)];
        let nodes = [node(0, &all), node(1, &less), node(2, &all)];
        let common = divide(&tensors, &nodes, true);
        let nodes: Vec<_> = common
            .iter()
            .map(|it| (it.tensor, &it.nodes[..], it.owner))
            .collect();
        assert_eq!(
            nodes,
            [
                (0, &[0, 2][..], 0),
                (1, &[0, 2], 0),
                (2, &[0, 1, 2], 1),
                (3, &[0, 1, 2], 2),
            ]
        );
    }

    fn merged(mut ranges: Vec<(usize, Range<u64>)>) -> Vec<(usize, Range<u64>)> {
        ranges.sort_by_key(|(source, range)| (*source, range.start));
        let mut merged: Vec<(usize, Range<u64>)> = Vec::new();
        for (source, range) in ranges {
            match merged.last_mut() {
                Some((last, end)) if *last == source && end.end >= range.start => {
                    end.end = end.end.max(range.end);
                }
                _ => merged.push((source, range)),
            }
        }
        merged
    }

    proptest! {
        /// Every byte that a node wants is read there or received there, once; the owner is one of
        /// the nodes that want it; the order of the nodes makes no difference.
        #[test]
        fn every_wanted_byte_has_one_reader(
            lengths in prop::collection::vec(prop::collection::vec(1..40_u64, 1..6), 1..3),
            wants in prop::collection::vec(
                prop::collection::vec((0..3_usize, 0..250_u64, 1..120_u64), 0..6), 1..5),
            whole in any::<bool>(),
        ) {
            let lengths: Vec<&[u64]> = lengths.iter().map(|it| &it[..]).collect();
            let tensors = tensors(&lengths);
            let nodes: Vec<NodeWants> = wants.iter().enumerate().map(|(index, wants)| {
                let ranges = wants.iter().map(|(source, from, len)| (*source, *from..from + len));
                node(index * 8, &merged(ranges.collect()))
            }).collect();
            let common = divide(&tensors, &nodes, whole);
            let mut reversed = nodes.clone();
            reversed.reverse();
            prop_assert_eq!(&divide(&tensors, &reversed, whole), &common);
            for (source, span) in &tensors {
                for byte in span.clone() {
                    let wants: Vec<usize> = nodes.iter().filter(|node| {
                        node.ranges.iter().any(|(other, range)| other == source && range.contains(&byte))
                    }).map(|node| node.leader).collect();
                    let here: Vec<_> = common.iter()
                        .filter(|it| it.source == *source && it.range.contains(&byte)).collect();
                    // Each node takes a byte from one place at most.
                    for node in &nodes {
                        let from = here.iter().filter(|it| it.nodes.contains(&node.leader)).count();
                        prop_assert!(from <= 1);
                    }
                    for it in &here {
                        prop_assert!(it.nodes.contains(&it.owner) && it.nodes.len() > 1);
                    }
                    if whole || wants.len() < 2 {
                        continue;
                    }
                    // Nodes that all want nearly the same read it once.
                    let takes = here.iter().map(|it| it.nodes.len()).sum::<usize>();
                    prop_assert!(takes == 0 || takes >= wants.len());
                }
            }
            for it in &common {
                let (source, span) = &tensors[it.tensor];
                prop_assert!(it.source == *source);
                prop_assert!(span.start <= it.range.start && it.range.end <= span.end);
            }
            if whole {
                for it in &common {
                    let others = common.iter()
                        .filter(|other| other.source == it.source && other.nodes == it.nodes);
                    prop_assert!(others.clone().all(|other| other.owner == it.owner));
                }
            }
        }

        /// Nodes that want the same differ by one unit at most.
        #[test]
        fn owners_are_balanced_by_bytes(
            lengths in prop::collection::vec(1..30 * MIB, 1..60),
            nodes in 2..5_usize,
        ) {
            let tensors = tensors(&[&lengths]);
            let all = [(0, 0..u64::MAX)];
            let nodes: Vec<NodeWants> = (0..nodes).map(|leader| node(leader, &all)).collect();
            let common = divide(&tensors, &nodes, false);
            prop_assert_eq!(common.len(), tensors.len());
            let bytes = |node: &NodeWants| -> u64 {
                let own = common.iter().filter(|it| it.owner == node.leader);
                own.map(|it| length(&it.range)).sum()
            };
            let bytes: Vec<u64> = nodes.iter().map(bytes).collect();
            let (least, most) = (bytes.iter().min(), bytes.iter().max());
            let longest = lengths.iter().max().expect("one at least");
            prop_assert!(most.expect("some") - least.expect("some") <= UNIT_BYTES.max(*longest));
        }
    }
}
