//! What a run did to its workspace, in as few words as a model has room for.

use belljar_wire::Changes;

/// Shortens lists and patch to a share of the budget.
pub(super) fn shorten(changes: &mut Changes, budget: usize) {
    let mut room = budget / 10;
    for names in [&mut changes.added, &mut changes.changed, &mut changes.removed] {
        let fit = names.iter().take_while(|name| {
            let fits = name.len() + 4 <= room;
            room = if fits { room - name.len() - 4 } else { 0 };
            fits
        });
        let kept = fit.count();
        changes.truncated |= kept < names.len();
        names.truncate(kept);
    }
    let most = budget / 4;
    if changes.patch.len() > most {
        let end =
            changes.patch[..changes.patch.floor_char_boundary(most)].rfind('\n').map_or(0, |end| end + 1);
        changes.patch.truncate(end);
        changes.truncated = true;
    }
}

/// The same as text.
pub(super) fn told(changes: &Changes) -> String {
    let lists = [("added", &changes.added), ("changed", &changes.changed), ("removed", &changes.removed)];
    let mut text = String::from("\nchanges:");
    for (word, names) in lists {
        for name in names {
            text += &format!("\n- {word} {}", name.escape_debug());
        }
    }
    if lists.iter().all(|(_, names)| names.is_empty()) {
        text += " none";
    }
    if !changes.patch.is_empty() {
        text += &format!("\n{}", changes.patch.trim_end_matches('\n'));
    }
    if changes.truncated {
        text += "\n(there were more changes than fit here)";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(names: usize, patch: &str) -> Changes {
        let added = (0..names).map(|number| format!("{}{number}", "n".repeat(90))).collect();
        let (changed, removed) = (vec!["old".to_owned()], Vec::new());
        Changes { added, changed, removed, patch: patch.to_owned(), truncated: false }
    }

    #[test]
    fn what_fits_is_told_whole() {
        let mut few = changes(1, "diff\n-a\n+b\n");
        let before = few.clone();
        shorten(&mut few, 30_000);
        assert_eq!(few, before);
        assert!(told(&few).ends_with("0\n- changed old\ndiff\n-a\n+b"), "{}", told(&few));
    }

    #[test]
    fn what_does_not_fit_is_cut_at_a_line_and_said() {
        let mut many = changes(5000, &"+\u{fc}\u{fc}\n".repeat(5000));
        shorten(&mut many, 3000);
        assert!(many.truncated && told(&many).len() < 2000, "{}", told(&many));
        assert!(many.patch.ends_with("\u{fc}\n"), "{}", many.patch);
    }
}
