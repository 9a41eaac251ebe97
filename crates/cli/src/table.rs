//! Text in columns.

use crate::output::inert;

/// A heading and rows, each column as wide as its widest cell, the last one as it comes.
pub(crate) fn aligned<const N: usize>(heading: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(heading.map(str::to_owned))
        .chain(rows)
        .map(|row| row.map(|cell| inert(&cell)))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
