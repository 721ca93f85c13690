//! The text of the setting `search_path`.

/// The default of the setting.
pub(crate) const DEFAULT: &str = "\"$user\", public";

/// Parses a list of names, which are folded to lower case unless quoted; `None` if it is malformed.
pub(crate) fn parsed(setting: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut rest = setting.trim_start();
    if rest.is_empty() {
        return Some(names);
    }
    loop {
        let (name, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_name(quoted)?,
            None => {
                let end = rest.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                if name.is_empty() || name.contains('"') {
                    return None;
                }
                (name.to_lowercase(), after)
            }
        };
        names.push(name);
        rest = after.trim_start();
        if rest.is_empty() {
            return Some(names);
        }
        rest = rest.strip_prefix(',')?.trim_start();
    }
}

/// Returns a name up to its closing quote, and the rest.
fn quoted_name(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return Some((name, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_is_read_as_postgresql_reads_it() {
        let read = |text| parsed(text).map(|names| names.join("|"));
        assert_eq!(read(DEFAULT).as_deref(), Some("$user|public"));
        assert_eq!(read(" A , \"B \"\"c\" ").as_deref(), Some("a|B \"c"));
        assert_eq!(read("").as_deref(), Some(""));
        assert_eq!(read("\"\"").as_deref(), Some(""));
        for malformed in [",", "a,", "a b", "\"a", "a\"b\"", "\"a\"b"] {
            assert_eq!(read(malformed), None, "{malformed}");
        }
    }
}
