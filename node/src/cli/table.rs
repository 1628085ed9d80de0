//! A plain text table: columns as wide as their widest cell.

/// Rows under a heading, padded; numbers (right) and words (left) as each column says.
pub(crate) struct Table {
    heading: Vec<(&'static str, bool)>,
    rows: Vec<Row>,
}

enum Row {
    Cells(Vec<String>),
    /// Text in place of all cells but the first; it widens no column.
    Remark(String, String),
}

impl Row {
    fn width(&self, column: usize) -> usize {
        let cell = match self {
            Self::Cells(cells) => cells.get(column),
            Self::Remark(first, _) => (column == 0).then_some(first),
        };
        cell.map_or(0, |cell| cell.chars().count())
    }
}

impl Table {
    /// `heading` lists each column's title and whether its cells are numbers.
    pub(crate) fn new(heading: &[(&'static str, bool)]) -> Self {
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell per column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.heading.len(), "a row has one cell per column");
        self.rows.push(Row::Cells(cells));
    }

    /// Adds a row that has a first cell and otherwise only something to say.
    pub(crate) fn remark(&mut self, first: String, text: String) {
        self.rows.push(Row::Remark(first, text));
    }

    pub(crate) fn render(&self) -> String {
        let width = |i: usize| self.rows.iter().map(|r| r.width(i)).chain(self.heading.get(i).map(|h| h.0.len())).max();
        let widths: Vec<usize> = (0..self.heading.len()).map(|i| width(i).unwrap_or(0)).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut out = String::new();
            for ((cell, width), (_, number)) in cells.zip(&widths).zip(&self.heading) {
                let pad = " ".repeat(width - cell.chars().count());
                if *number {
                    out += &format!("{pad}{cell}  ");
                } else {
                    out += &format!("{cell}{pad}  ");
                }
            }
            out.trim_end().to_owned() + "\n"
        };
        let mut text = line(&mut self.heading.iter().map(|h| h.0));
        for row in &self.rows {
            match row {
                Row::Cells(cells) => text += &line(&mut cells.iter().map(String::as_str)),
                Row::Remark(first, remark) => {
                    let first = line(&mut std::iter::once(first.as_str()));
                    let pad = " "
                        .repeat(widths.first().map_or(0, |w| w + 2).saturating_sub(first.trim_end().chars().count()));
                    text += &format!("{}{pad}{remark}\n", first.trim_end());
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_align_right_and_words_left() {
        let mut table = Table::new(&[("NODE", false), ("APPLIED", true)]);
        table.row(vec!["n1".into(), "12".into()]);
        table.row(vec!["node-2".into(), "123456789".into()]);
        assert_eq!(table.render(), "NODE      APPLIED\nn1             12\nnode-2  123456789\n");
    }

    #[test]
    fn a_remark_starts_in_the_second_column_and_widens_nothing() {
        let mut table = Table::new(&[("NODE", false), ("PHASE", false), ("APPLIED", true)]);
        table.row(vec!["node-1".into(), "Recovered".into(), "7".into()]);
        table.remark("n2".into(), "unreachable: connection refused by everybody".into());
        let expected = "NODE    PHASE      APPLIED\nnode-1  Recovered        7\nn2      unreachable: connection refused by everybody\n";
        assert_eq!(table.render(), expected);
    }
}
