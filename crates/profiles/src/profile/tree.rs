//! The call tree: entries merged by function, from the outermost frame inwards. A node's values are the sum of its
//! children's and its own (of stacks that end in it), so the root's values are the total.
//!
//! Stacks may be thousands of frames deep, so nothing here recurses. A child comes after its parent in `nodes`, so a
//! pass from the end to the start sees children first.

use std::collections::HashMap;

use super::{FrameId, FunctionId, Profile, Value};

#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// `nodes[0]` is the root, for all entries.
    pub nodes: Vec<Node>,
    /// `width` values per node: the sum, and the values of stacks that end in the node.
    values: Vec<Value>,
    own: Vec<Value>,
    width: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Node {
    /// `None` for the root.
    pub function: Option<FunctionId>,
    /// One of the merged frames.
    pub frame: Option<FrameId>,
    /// Whether other frames, with other lines or addresses, were merged.
    pub several: bool,
    pub parent: usize,
    pub depth: usize,
    /// By weight, biggest first.
    pub children: Vec<usize>,
    /// The width in views; Σ children ≤ weight, never negative.
    pub weight: i64,
}

impl Tree {
    /// Builds the tree of some columns. `weigh` computes an entry's width from its amounts in these columns.
    pub fn new(profile: &Profile, columns: &[usize], weigh: impl Fn(&[Value]) -> i64) -> Tree {
        let width = columns.len();
        let mut tree = Tree { width, ..Tree::default() };
        tree.push(Node::default());
        let mut child_of: HashMap<(usize, FunctionId), usize> = HashMap::new();
        let mut chosen = vec![Value::default(); width];
        for (entry, values) in profile.entries() {
            for (to, column) in chosen.iter_mut().zip(columns) {
                *to = values.get(*column).copied().unwrap_or_default();
            }
            let mut at = 0;
            for frame in profile.frames_of(entry.stack).iter().rev() {
                let function = profile.function_of(*frame);
                at = *child_of.entry((at, function)).or_insert_with(|| {
                    let (frame, depth) = (Some(*frame), tree.nodes[at].depth + 1);
                    tree.push(Node { function: Some(function), frame, parent: at, depth, ..Node::default() })
                });
                tree.nodes[at].several |= tree.nodes[at].frame != Some(*frame);
            }
            tree.nodes[at].weight = tree.nodes[at].weight.saturating_add(weigh(&chosen).max(0));
            let own = &mut tree.own[at * width..(at + 1) * width];
            own.iter_mut().zip(&chosen).for_each(|(sum, v)| *sum = sum.plus(*v));
        }
        tree.sum(profile);
        // The root is the total, also where its error is less than that of its parts.
        let total = profile.total();
        for (root, column) in tree.values.iter_mut().zip(columns) {
            root.variance = total.get(*column).map_or(0.0, |sum| sum.variance);
        }
        tree
    }

    /// Builds the tree of one column; the amount is the width.
    pub fn of_column(profile: &Profile, column: usize) -> Tree {
        let columns: Vec<usize> = [Some(column), profile.companion(column)].into_iter().flatten().collect();
        Tree::new(profile, &columns, |values| values.first().map_or(0, |v| v.amount))
    }

    /// Sums of the node, in the order of the columns.
    pub fn values(&self, node: usize) -> &[Value] {
        &self.values[node * self.width..(node + 1) * self.width]
    }

    /// Values of the stacks that end in the node.
    pub fn own(&self, node: usize) -> &[Value] {
        &self.own[node * self.width..(node + 1) * self.width]
    }

    fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.own.extend(std::iter::repeat_n(Value::default(), self.width));
        self.nodes.len() - 1
    }

    fn sum(&mut self, profile: &Profile) {
        self.values = self.own.clone();
        for at in (1..self.nodes.len()).rev() {
            let (parent, weight) = (self.nodes[at].parent, self.nodes[at].weight);
            self.nodes[parent].weight = self.nodes[parent].weight.saturating_add(weight);
            self.nodes[parent].children.push(at);
            let (before, from) = self.values.split_at_mut(at * self.width);
            let into = &mut before[parent * self.width..(parent + 1) * self.width];
            into.iter_mut().zip(&*from).for_each(|(sum, v)| *sum = sum.plus(*v));
        }
        let keys: Vec<(i64, &str)> = self
            .nodes
            .iter()
            .map(|n| (n.weight, n.function.map_or("", |f| profile.function_at(f).name.as_str())))
            .collect();
        for node in &mut self.nodes {
            node.children.sort_by(|a, b| keys[*b].0.cmp(&keys[*a].0).then_with(|| keys[*a].1.cmp(keys[*b].1)));
        }
    }
}
