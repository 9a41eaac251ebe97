//! Which known word may have been meant by one that is not known.

/// The known word at the smallest edit distance, if that is small enough for a typing error.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, nearest) = known.into_iter().map(|known| (edit_distance(word, known), known)).min()?;
    // More than half of both must be right: `x` is one letter away from `c`, and nobody meant that.
    let shorter = nearest.len().min(word.len());
    (distance <= 1 + nearest.len() / 4 && 2 * distance < shorter).then_some(nearest)
}

/// Levenshtein distance, with a swap of neighbours counted as one error: it is the commonest one.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(32).collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, j) => j,
                (i, 0) => i,
                (i, j) => {
                    let change = usize::from(a[i - 1] != b[j - 1]);
                    let plain = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    if swapped { plain.min(rows[i - 2][j - 2] + 1) } else { plain }
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_recognized_and_another_word_is_not() {
        let known = ["wait", "expire", "allow-own"];
        assert_eq!(nearest("wiat", known), Some("wait"));
        assert_eq!(nearest("allow_own", known), Some("allow-own"));
        assert_eq!(nearest("timeout", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("wait", []), None);
    }
}
