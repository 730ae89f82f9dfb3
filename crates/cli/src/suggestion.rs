//! "Did you mean": the known name that a mistyped word is most like.

/// Of the items whose name is like `text`, the one that is most alike, or the first of several.
pub fn nearest<T>(text: &str, items: impl IntoIterator<Item = T>, name: impl Fn(&T) -> &str) -> Option<T> {
    let most = 1 + text.chars().count() / 5;
    let with_distance = items.into_iter().map(|item| (distance(text, name(&item)), item));
    let near = with_distance.filter(|(distance, _)| *distance <= most);
    near.min_by_key(|(distance, _)| *distance).map(|(_, item)| item)
}

/// The same for plain names.
pub fn nearest_name<'n>(text: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    nearest(text, names, |name| name)
}

/// The value that `text` may be meant to be: one of `words`, or one of `kinds`, which end in their separator (`port:`),
/// with the rest of `text`.
pub fn nearest_value<'n>(
    text: &str,
    words: impl IntoIterator<Item = &'n str>,
    kinds: impl IntoIterator<Item = &'n str>,
) -> Option<String> {
    let is_mistyped = |near: &&str| *near != text;
    let word = || nearest_name(text, words).filter(is_mistyped).map(str::to_owned);
    let Some(at) = text.find([':', '=']) else { return word() };
    // The separator has one byte.
    let (kind, rest) = text.split_at(at + 1);
    let kinds = kinds.into_iter().filter(|known| known.as_bytes().last() == kind.as_bytes().last());
    nearest_name(kind, kinds).filter(|near| *near != kind).map(|near| format!("{near}{rest}")).or_else(word)
}

/// Number of characters to insert, delete, replace or exchange with their neighbour (optimal string alignment). If
/// `other` begins with `one`, which has three characters or more, the distance is 1. Upper and lower case are the same.
fn distance(one: &str, other: &str) -> usize {
    let lower = |text: &str| text.to_lowercase().chars().take(64).collect::<Vec<char>>();
    let (a, b) = (lower(one), lower(other));
    if a.len() >= 3 && a != b && b.starts_with(&a) {
        return 1;
    }
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let same = usize::from(a[i - 1] != b[j - 1]);
                    let mut least = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + same);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        least = least.min(rows[i - 2][j - 2] + 1);
                    }
                    least
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
    fn what_is_alike_is_near() {
        assert_eq!(distance("jvaa", "java"), 1);
        assert_eq!(distance("redis", "redis-server"), 1);
        assert_eq!(distance("java", "java"), 0);
        assert_eq!(distance("java", "perl"), 4);
        assert_eq!(distance("", "ab"), 2);
    }

    #[test]
    fn a_value_keeps_what_follows_its_kind() {
        let value = |text| nearest_value(text, ["trim", "jemalloc", "thp=never"], ["arenas=", "env:"]);
        for (text, expected) in [
            ("trimm", Some("trim")),
            ("jemaloc", Some("jemalloc")),
            ("thp=nevr", Some("thp=never")),
            ("arena=2", Some("arenas=2")),
            ("evn:A=b", Some("env:A=b")),
            ("arenas=x", None),
            ("arenas", None),
            ("trim", None),
            ("", None),
            (":", None),
        ] {
            assert_eq!(value(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_nearest_name_is_proposed_and_no_distant_one() {
        let verbs = ["run", "attach", "explain", "record", "report", "help"];
        for (text, expected) in [
            ("exlpain", Some("explain")),
            ("reprot", Some("report")),
            ("rec", Some("record")),
            ("Explain", Some("explain")),
            ("frobnicate", None),
            ("hepl", Some("help")),
            ("yell", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest_name(text, verbs), expected, "{text}");
        }
    }
}
