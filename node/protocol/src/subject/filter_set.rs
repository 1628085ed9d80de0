//! Many filters, and which of them overlaps another one, without comparing each with each.
//!
//! Filters are grouped by their [`Layout`]: how many tokens, which of them are literal, whether `>` follows. Two
//! filters of layouts that can meet overlap exactly if they agree in the tokens that are literal in both. So each group
//! keeps, for every choice of tokens that was asked for, a table by the text of those tokens; a question is one look-up
//! for each layout. A stream has a handful of layouts, so its check takes time in proportion to its subjects. Where
//! every subject has a layout of its own nothing of the kind is possible; [`FilterSet::work`] tells, and rules bound
//! it.

use std::collections::{BTreeMap, HashMap};

use super::{overlaps, tokens};

/// Where a filter has wildcards.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Layout {
    /// Tokens without the final `>`.
    tokens: u32,
    /// Whether `>` follows them.
    open: bool,
    /// Which tokens are literal, rising.
    literals: Box<[u32]>,
}

impl Layout {
    fn of(filter: &[u8]) -> Self {
        let open = filter == b">" || filter.ends_with(b".>");
        let mut literals = Vec::new();
        let mut count = 0_u32;
        for token in tokens(filter) {
            if token != b"*" {
                literals.push(count);
            }
            count += 1;
        }
        if open {
            // The last token, which was taken for a literal one.
            literals.pop();
            count -= 1;
        }
        Self { tokens: count, open, literals: literals.into() }
    }

    /// Whether subjects of the same number of tokens can match both.
    fn can_meet(&self, other: &Self) -> bool {
        match (self.open, other.open) {
            (false, false) => self.tokens == other.tokens,
            (true, false) => self.tokens < other.tokens,
            (false, true) => self.tokens > other.tokens,
            (true, true) => true,
        }
    }

    /// The tokens that are literal in both.
    fn common(&self, other: &Self) -> Box<[u32]> {
        let (mut ours, mut theirs) = (self.literals.iter().peekable(), other.literals.iter().peekable());
        let mut common = Vec::new();
        while let (Some(&&a), Some(&&b)) = (ours.peek(), theirs.peek()) {
            if a <= b {
                ours.next();
            }
            if b <= a {
                theirs.next();
            }
            if a == b {
                common.push(a);
            }
        }
        common.into()
    }
}

/// The text of these tokens, unmistakably: no token contains a dot.
fn project(filter: &[u8], which: &[u32], into: &mut Vec<u8>) {
    into.clear();
    let mut which = which.iter().copied().peekable();
    for (at, token) in (0_u32..).zip(tokens(filter)) {
        match which.peek() {
            None => return,
            Some(next) if *next == at => {
                into.extend_from_slice(token);
                into.push(b'.');
                which.next();
            }
            Some(_) => {}
        }
    }
}

/// The filters of one layout by the text of some of their tokens; of equals the first.
type Table = HashMap<Box<[u8]>, usize>;

#[derive(Debug)]
struct Group<'a> {
    layout: Layout,
    filters: Vec<(&'a [u8], usize)>,
    tables: BTreeMap<Box<[u32]>, Table>,
}

impl<'a> Group<'a> {
    fn add(&mut self, filter: &'a [u8], number: usize) {
        self.filters.push((filter, number));
        let mut text = Vec::new();
        for (which, table) in &mut self.tables {
            project(filter, which, &mut text);
            table.entry(text.as_slice().into()).or_insert(number);
        }
    }

    fn table(&mut self, which: Box<[u32]>) -> &Table {
        let filters = &self.filters;
        self.tables.entry(which).or_insert_with_key(|which| {
            let mut table = Table::with_capacity(filters.len());
            let mut text = Vec::new();
            for (filter, number) in filters {
                project(filter, which, &mut text);
                table.entry(text.as_slice().into()).or_insert(*number);
            }
            table
        })
    }
}

/// See the module's description. Filters are expected to be valid; they are numbered from zero in the order of their
/// insertion.
#[derive(Debug, Default)]
pub struct FilterSet<'a> {
    groups: Vec<Group<'a>>,
    by_layout: HashMap<Layout, usize>,
    len: usize,
    tokens: usize,
}

impl<'a> FilterSet<'a> {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of these filters, which may overlap each other.
    pub fn of<S: AsRef<[u8]> + ?Sized + 'a>(filters: impl IntoIterator<Item = &'a S>) -> Self {
        let mut set = Self::new();
        for filter in filters {
            set.insert(filter.as_ref());
        }
        set
    }

    /// Adds a filter and returns its number.
    pub fn insert(&mut self, filter: &'a [u8]) -> usize {
        let number = self.len;
        let layout = Layout::of(filter);
        self.len += 1;
        self.tokens += layout.tokens as usize + 1;
        let at = *self.by_layout.entry(layout).or_insert_with_key(|layout| {
            self.groups.push(Group { layout: layout.clone(), filters: Vec::new(), tables: BTreeMap::new() });
            self.groups.len() - 1
        });
        self.groups[at].add(filter, number);
        number
    }

    /// The number of the first filter that overlaps this one.
    ///
    /// It takes `&mut` because a table is made when it is asked for the first time.
    pub fn overlapping(&mut self, filter: &[u8]) -> Option<usize> {
        let asked = Layout::of(filter);
        let mut text = Vec::new();
        let mut first: Option<usize> = None;
        for group in self.groups.iter_mut().filter(|group| group.layout.can_meet(&asked)) {
            let found = match group.filters.as_slice() {
                // A table would take longer to make than to do without.
                [(only, number)] => overlaps(only, filter).then_some(*number),
                _ => {
                    let which = group.layout.common(&asked);
                    project(filter, &which, &mut text);
                    group.table(which).get(text.as_slice()).copied()
                }
            };
            first = [first, found].into_iter().flatten().min();
        }
        first
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no filters.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A bound on the steps that comparing these filters with each other takes: all their tokens, for each layout.
    pub fn work(&self) -> usize {
        self.tokens.saturating_mul(self.groups.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter() -> impl Strategy<Value = String> {
        (proptest::collection::vec("[ab]{1,2}|\\*|a\\*", 0..5), any::<bool>()).prop_map(|(mut tokens, tail)| {
            if tail || tokens.is_empty() {
                tokens.push(">".into());
            }
            tokens.join(".")
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn finds_what_comparing_each_with_each_finds(filters in proptest::collection::vec(filter(), 0..30)) {
            let mut set = FilterSet::new();
            for (at, filter) in filters.iter().enumerate() {
                let naive = filters[..at].iter().position(|earlier| overlaps(earlier.as_bytes(), filter.as_bytes()));
                prop_assert_eq!(set.overlapping(filter.as_bytes()), naive, "{} among {:?}", filter, &filters[..at]);
                prop_assert_eq!(set.insert(filter.as_bytes()), at);
            }
            prop_assert_eq!(set.len(), filters.len());
        }
    }

    fn entries(set: &FilterSet<'_>) -> usize {
        set.groups.iter().flat_map(|group| group.tables.values()).map(HashMap::len).sum()
    }

    /// A bound on the structure rather than on time: what is kept is what was worked on.
    #[test]
    fn many_filters_of_few_layouts_take_few_entries() {
        let kinds: [fn(usize) -> String; 5] = [
            |i| format!("plain.{i}"),
            |i| format!("wide{i}.*"),
            |i| format!("*.deep{i}.x"),
            |i| format!("open.{i}.x.>"),
            |i| format!("a.*.b.{i}.*"),
        ];
        let filters: Vec<String> = (0..60_000).map(|i| kinds[i % kinds.len()](i)).collect();
        let mut set = FilterSet::new();
        for filter in &filters {
            assert_eq!(set.overlapping(filter.as_bytes()), None, "{filter}");
            set.insert(filter.as_bytes());
        }
        assert_eq!(set.groups.len(), kinds.len());
        assert!(entries(&set) <= filters.len() * kinds.len(), "{}", entries(&set));
        assert_eq!(set.overlapping(b"wide31.new"), Some(31));
        assert_eq!(set.overlapping(b"*.*"), Some(0));
    }

    /// What a trie that is walked token by token stumbles over: each of one half leads into all of the other.
    #[test]
    fn wildcards_before_literals_do_not_multiply() {
        let filters: Vec<String> =
            (0..60_000).map(|i| if i % 2 == 0 { format!("a{i}.x") } else { format!("*.y{i}") }).collect();
        let mut set = FilterSet::new();
        for filter in &filters {
            assert_eq!(set.overlapping(filter.as_bytes()), None, "{filter}");
            set.insert(filter.as_bytes());
        }
        assert!(entries(&set) <= filters.len() * 2);
        assert!(set.work() <= filters.len() * 3 * 2);
    }
}
