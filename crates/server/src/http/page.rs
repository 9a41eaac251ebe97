//! What all lists, and all paths with an identifier, have in common.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;

/// How many are to be looked for, if a page has so many: one more, to know whether there is another page.
pub(super) fn asked_for(limit: usize) -> usize {
    limit.saturating_add(1)
}

/// A page of what was found, and the cursor of the next page, if there is one.
pub(super) fn cut<T>(mut found: Vec<T>, limit: usize, id: impl Fn(&T) -> String) -> (Vec<T>, Option<String>) {
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| more).map(id);
    (found, next_cursor)
}

/// The identifier in a path. A path that is not even text names nothing.
pub(super) fn identifier(path: Result<Path<String>, PathRejection>) -> String {
    path.map_or_else(|_| "?".to_owned(), |Path(id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_where_the_next_begins() {
        let all = [5, 4, 3, 2, 1];
        let page = |limit: usize| {
            let found = all.iter().take(asked_for(limit)).copied().collect();
            cut(found, limit, ToString::to_string)
        };
        assert_eq!(page(2), (vec![5, 4], Some("4".to_owned())));
        assert_eq!(page(5), (all.to_vec(), None));
        assert_eq!(page(9), (all.to_vec(), None));
        assert_eq!(cut(Vec::<u8>::new(), 5, ToString::to_string), (Vec::new(), None));
    }
}
