//! Text in columns.

use crate::output::inert;

/// A heading and rows, each column as wide as its widest cell.
pub(crate) fn aligned<const N: usize>(heading: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let heading = heading.map(str::to_owned).to_vec();
    columns(&std::iter::once(heading).chain(rows.map(Vec::from)).collect::<Vec<_>>())
}

/// Rows that all have the same number of cells.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| inert(cell)).collect()).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
