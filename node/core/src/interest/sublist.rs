//! The subscription index: subject filter → subscribers, plain and in queue groups.
//!
//! Literal filters live in one hash map, wildcard filters in a token trie. A subject that hits one node only
//! (the common case: a literal subject, or an inbox under one `_INBOX.x.*`) is answered by that node's own list,
//! without copying. When several nodes match, the merged list is cached under the *set of nodes*, not under the
//! subject, so a flood of unique inbox subjects neither misses nor grows the cache.

use hashbrown::HashMap;
use headwater_protocol::subject::{self, InvalidSubject, Shape, split_token};
use smallvec::SmallVec;

/// Merged lists kept at most; reaching it empties the cache.
const MERGED_MAX: usize = 1024;

type NodeIndex = u32;

/// The subscribers of one subject.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MatchResult<T> {
    /// Each of these gets every message.
    pub plain: Vec<T>,
    /// One member of each of these gets every message.
    pub queues: Vec<QueueGroup<T>>,
}

/// The members of one queue group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QueueGroup<T> {
    /// The group's name as the client gave it.
    pub name: Box<[u8]>,
    /// Never empty.
    pub members: Vec<T>,
}

impl<T> Default for MatchResult<T> {
    fn default() -> Self {
        Self { plain: Vec::new(), queues: Vec::new() }
    }
}

impl<T: Copy + Eq> MatchResult<T> {
    /// Whether nobody is interested.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.queues.is_empty()
    }

    fn add(&mut self, queue: Option<&[u8]>, subscriber: T) {
        match queue {
            None => self.plain.push(subscriber),
            Some(name) => self.group(name).push(subscriber),
        }
    }

    fn group(&mut self, name: &[u8]) -> &mut Vec<T> {
        let at = match self.queues.iter().position(|group| &*group.name == name) {
            Some(at) => at,
            None => {
                self.queues.push(QueueGroup { name: name.into(), members: Vec::new() });
                self.queues.len() - 1
            }
        };
        &mut self.queues[at].members
    }

    fn take(&mut self, queue: Option<&[u8]>, subscriber: &T) -> bool {
        let Some(name) = queue else {
            return take_one(&mut self.plain, subscriber);
        };
        let Some(at) = self.queues.iter().position(|group| &*group.name == name) else {
            return false;
        };
        let taken = take_one(&mut self.queues[at].members, subscriber);
        if self.queues[at].members.is_empty() {
            self.queues.remove(at);
        }
        taken
    }

    fn merge(&mut self, other: &Self) {
        self.plain.extend_from_slice(&other.plain);
        for group in &other.queues {
            self.group(&group.name).extend_from_slice(&group.members);
        }
    }
}

fn take_one<T: PartialEq>(list: &mut Vec<T>, wanted: &T) -> bool {
    // Newest first: short-lived subscriptions (request inboxes) are at the end.
    let Some(at) = list.iter().rposition(|have| have == wanted) else {
        return false;
    };
    list.remove(at);
    true
}

#[derive(Debug)]
struct Node<T> {
    parent: Option<(NodeIndex, Step)>,
    children: HashMap<Box<[u8]>, NodeIndex>,
    any: Option<NodeIndex>,
    rest: Option<NodeIndex>,
    subscribers: MatchResult<T>,
}

/// How a node hangs under its parent, so that an empty one can be unhooked.
#[derive(Clone, Debug)]
enum Step {
    Literal(Box<[u8]>),
    Any,
    Rest,
}

impl<T> Node<T> {
    fn new(parent: Option<(NodeIndex, Step)>) -> Self {
        Self { parent, children: HashMap::new(), any: None, rest: None, subscribers: MatchResult::default() }
    }
}

#[derive(Debug)]
struct Merged<T> {
    generation: u64,
    result: MatchResult<T>,
}

/// The index. `T` is a small handle: a subscription, or a peer node that has interest.
///
/// The same handle may be inserted several times; each insert needs its own remove.
#[derive(Debug)]
pub struct Sublist<T> {
    nodes: Vec<Node<T>>,
    free: Vec<NodeIndex>,
    literals: HashMap<Box<[u8]>, NodeIndex>,
    merged: HashMap<SmallVec<[NodeIndex; 6]>, Merged<T>>,
    nobody: MatchResult<T>,
    generation: u64,
    len: usize,
    wildcards: usize,
}

/// The trie's root; it is never freed.
const ROOT: NodeIndex = 0;

impl<T: Copy + Eq> Default for Sublist<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy + Eq> Sublist<T> {
    /// An index without subscriptions.
    pub fn new() -> Self {
        Self {
            nodes: vec![Node::new(None)],
            free: Vec::new(),
            literals: HashMap::new(),
            merged: HashMap::new(),
            nobody: MatchResult::default(),
            generation: 0,
            len: 0,
            wildcards: 0,
        }
    }

    /// Number of subscriptions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no subscription.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Changes with every insert and remove; lets callers keep their own caches of answers.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds a subscriber for `filter`, as a plain one or as a member of `queue`.
    pub fn insert(&mut self, filter: &[u8], queue: Option<&[u8]>, subscriber: T) -> Result<(), InvalidSubject> {
        let node = match subject::shape(filter) {
            Shape::Invalid => return Err(InvalidSubject),
            Shape::Literal => self.literal_node(filter),
            Shape::Wildcard => {
                self.wildcards += 1;
                self.wildcard_node(filter)
            }
        };
        self.nodes[node as usize].subscribers.add(queue, subscriber);
        self.len += 1;
        self.generation += 1;
        Ok(())
    }

    /// Removes one earlier insert of the same three; `false` if there was none.
    pub fn remove(&mut self, filter: &[u8], queue: Option<&[u8]>, subscriber: &T) -> bool {
        let literal = !subject::has_wildcards(filter);
        let found = if literal { self.literals.get(filter).copied() } else { self.find_wildcard(filter) };
        let Some(node) = found else {
            return false;
        };
        if !self.nodes[node as usize].subscribers.take(queue, subscriber) {
            return false;
        }
        self.len -= 1;
        self.generation += 1;
        if literal {
            if self.nodes[node as usize].subscribers.is_empty() {
                self.literals.remove(filter);
                self.release(node);
            }
        } else {
            self.wildcards -= 1;
            self.prune(node);
        }
        true
    }

    /// The subscribers of a subject (one without wildcards).
    pub fn matches(&mut self, subject: &[u8]) -> &MatchResult<T> {
        let hits = self.hits(subject);
        match hits.as_slice() {
            [] => &self.nobody,
            [only] => &self.nodes[*only as usize].subscribers,
            _ => self.merge_of(hits),
        }
    }

    /// Whether anybody wants this subject.
    pub fn has_interest(&self, subject: &[u8]) -> bool {
        self.literals.contains_key(subject) || (self.wildcards > 0 && self.any_below(ROOT, subject))
    }

    /// Calls `visit` for every subscription: filter, queue group, subscriber.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], Option<&[u8]>, &T)) {
        for (filter, node) in &self.literals {
            visit_node(&self.nodes[*node as usize], filter, &mut visit);
        }
        let mut path = Vec::new();
        self.visit_below(ROOT, &mut path, &mut visit);
    }

    fn hits(&self, subject: &[u8]) -> SmallVec<[NodeIndex; 6]> {
        let mut hits = SmallVec::new();
        if let Some(node) = self.literals.get(subject) {
            hits.push(*node);
        }
        if self.wildcards > 0 {
            self.walk(ROOT, subject, &mut hits);
        }
        hits
    }

    fn walk(&self, at: NodeIndex, rest: &[u8], hits: &mut SmallVec<[NodeIndex; 6]>) {
        let node = &self.nodes[at as usize];
        if let Some(full) = node.rest {
            hits.push(full);
        }
        let (token, rest) = split_token(rest);
        let literal = if node.children.is_empty() { None } else { node.children.get(token).copied() };
        for next in [literal, node.any].into_iter().flatten() {
            match rest {
                Some(rest) => self.walk(next, rest, hits),
                None if !self.nodes[next as usize].subscribers.is_empty() => hits.push(next),
                None => {}
            }
        }
    }

    fn any_below(&self, at: NodeIndex, rest: &[u8]) -> bool {
        let node = &self.nodes[at as usize];
        if node.rest.is_some() {
            return true;
        }
        let (token, rest) = split_token(rest);
        [node.children.get(token).copied(), node.any].into_iter().flatten().any(|next| match rest {
            Some(rest) => self.any_below(next, rest),
            None => !self.nodes[next as usize].subscribers.is_empty(),
        })
    }

    fn merge_of(&mut self, hits: SmallVec<[NodeIndex; 6]>) -> &MatchResult<T> {
        if self.merged.len() >= MERGED_MAX && !self.merged.contains_key(&hits) {
            self.merged.clear();
        }
        let nodes = &self.nodes;
        let build = |hits: &[NodeIndex]| {
            let mut result = MatchResult::default();
            for node in hits {
                result.merge(&nodes[*node as usize].subscribers);
            }
            result
        };
        let generation = self.generation;
        let entry = self.merged.entry(hits);
        let merged = match entry {
            hashbrown::hash_map::Entry::Occupied(mut kept) => {
                if kept.get().generation != generation {
                    let result = build(kept.key());
                    kept.insert(Merged { generation, result });
                }
                kept.into_mut()
            }
            hashbrown::hash_map::Entry::Vacant(vacant) => {
                let result = build(vacant.key());
                vacant.insert(Merged { generation, result })
            }
        };
        &merged.result
    }

    fn literal_node(&mut self, filter: &[u8]) -> NodeIndex {
        if let Some(node) = self.literals.get(filter) {
            return *node;
        }
        let node = self.allocate(None);
        self.literals.insert(filter.into(), node);
        node
    }

    fn wildcard_node(&mut self, filter: &[u8]) -> NodeIndex {
        let mut at = ROOT;
        for token in subject::tokens(filter) {
            at = match self.child(at, token) {
                Some(next) => next,
                None => self.add_child(at, token),
            };
        }
        at
    }

    fn find_wildcard(&self, filter: &[u8]) -> Option<NodeIndex> {
        subject::tokens(filter).try_fold(ROOT, |at, token| self.child(at, token))
    }

    fn child(&self, at: NodeIndex, token: &[u8]) -> Option<NodeIndex> {
        let node = &self.nodes[at as usize];
        match token {
            b"*" => node.any,
            b">" => node.rest,
            literal => node.children.get(literal).copied(),
        }
    }

    fn add_child(&mut self, at: NodeIndex, token: &[u8]) -> NodeIndex {
        let step = match token {
            b"*" => Step::Any,
            b">" => Step::Rest,
            literal => Step::Literal(literal.into()),
        };
        let made = self.allocate(Some((at, step.clone())));
        let node = &mut self.nodes[at as usize];
        match step {
            Step::Any => node.any = Some(made),
            Step::Rest => node.rest = Some(made),
            Step::Literal(token) => {
                node.children.insert(token, made);
            }
        }
        made
    }

    /// Unhooks `node` and its ancestors as far as they carry nothing any more.
    fn prune(&mut self, mut at: NodeIndex) {
        loop {
            let node = &self.nodes[at as usize];
            let used =
                !node.subscribers.is_empty() || !node.children.is_empty() || node.any.is_some() || node.rest.is_some();
            if used {
                return;
            }
            let Some((parent, step)) = node.parent.clone() else {
                return;
            };
            let above = &mut self.nodes[parent as usize];
            match step {
                Step::Any => above.any = None,
                Step::Rest => above.rest = None,
                Step::Literal(token) => {
                    above.children.remove(&token);
                }
            }
            self.release(at);
            at = parent;
        }
    }

    fn allocate(&mut self, parent: Option<(NodeIndex, Step)>) -> NodeIndex {
        if let Some(node) = self.free.pop() {
            self.nodes[node as usize] = Node::new(parent);
            return node;
        }
        let node = NodeIndex::try_from(self.nodes.len()).expect("four billion filters do not fit in memory");
        self.nodes.push(Node::new(parent));
        node
    }

    fn release(&mut self, node: NodeIndex) {
        self.nodes[node as usize] = Node::new(None);
        self.free.push(node);
    }

    fn visit_below(&self, at: NodeIndex, path: &mut Vec<u8>, visit: &mut impl FnMut(&[u8], Option<&[u8]>, &T)) {
        let node = &self.nodes[at as usize];
        visit_node(node, path, visit);
        let literals = node.children.iter().map(|(token, next)| (&**token, *next));
        let any = node.any.map(|next| (&b"*"[..], next));
        let rest = node.rest.map(|next| (&b">"[..], next));
        for (token, next) in literals.chain(any).chain(rest) {
            let before = path.len();
            if before > 0 {
                path.push(b'.');
            }
            path.extend_from_slice(token);
            self.visit_below(next, path, visit);
            path.truncate(before);
        }
    }
}

fn visit_node<T>(node: &Node<T>, filter: &[u8], visit: &mut impl FnMut(&[u8], Option<&[u8]>, &T)) {
    for subscriber in &node.subscribers.plain {
        visit(filter, None, subscriber);
    }
    for group in &node.subscribers.queues {
        for subscriber in &group.members {
            visit(filter, Some(&group.name), subscriber);
        }
    }
}
