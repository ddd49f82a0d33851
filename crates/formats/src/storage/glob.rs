//! Shell patterns for one path component: `*`, `?`, `[abc]`, `[a-z]`, `[!x]`, `\` escapes. Matching
//! takes at most pattern × name steps, whatever the pattern.

/// Whether a component holds any pattern character.
pub(super) fn is_pattern(component: &str) -> bool {
    component.contains(['*', '?', '[', '\\'])
}

/// Whether `name` matches `pattern` (neither holds a `/`).
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // Where to resume when the text after the last `*` does not match: one more character eaten.
    let mut retry: Option<(usize, usize)> = None;
    while let Some(&c) = name.get(n) {
        if pattern.get(p) == Some(&'*') {
            retry = Some((p + 1, n));
            p += 1;
        } else if let Some(width) = matches_one(pattern.get(p..).unwrap_or_default(), c) {
            p += width;
            n += 1;
        } else if let Some((star, eaten)) = retry {
            retry = Some((star, eaten + 1));
            (p, n) = (star, eaten + 1);
        } else {
            return false;
        }
    }
    pattern
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|&c| c == '*'))
}

/// How much of the pattern's front (not a `*`) matches `c`, if it does.
fn matches_one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['\\', escaped, ..] => (*escaped == c).then_some(2),
        ['[', set @ ..] => {
            let Some((inside, width)) = in_set(set, c) else {
                // An unclosed bracket stands for itself.
                return (c == '[').then_some(1);
            };
            inside.then_some(width + 1)
        }
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

/// Whether `c` is in the set that opens `set`, and the set's width with its `]`.
fn in_set(set: &[char], c: char) -> Option<(bool, usize)> {
    let negated = matches!(set.first(), Some('!' | '^'));
    let mut i = usize::from(negated);
    let start = i;
    let mut found = false;
    loop {
        match set.get(i..)? {
            [']', ..] if i > start => return Some((found != negated, i + 1)),
            [low, '-', high, ..] if *high != ']' => {
                found |= (*low..=*high).contains(&c);
                i += 3;
            }
            [one, ..] => {
                found |= *one == c;
                i += 1;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", ".hidden", true),
            ("m.data-?????-of-?????", "m.data-00001-of-00002", true),
            ("m.data-?????-of-?????", "m.data-0001-of-00002", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("g[[]1]", "g[1]", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[x", "[x", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("é?", "éü", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        let name = "a".repeat(5000);
        assert!(!matches(&format!("{}b", "a*".repeat(500)), &name));
    }
}
