//! What AWS's shared files say: `~/.aws/config` and `~/.aws/credentials`, of the profile that `AWS_PROFILE` names.
//! Only keys that stand in them are used; roles and single sign-on are left to the programs that make keys of them.

use downpour_graph::{Code, Result, Status};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// No such file is longer.
const LONGEST: u64 = 1 << 20;

/// The environment that a storage was given.
pub(crate) type Environment = BTreeMap<String, String>;

/// The settings of the chosen profile, credentials included; nothing if there are no files.
pub(crate) fn settings(environment: &Environment) -> Result<BTreeMap<String, String>> {
    let chosen = environment.get("AWS_PROFILE").map(String::as_str);
    let name = chosen.unwrap_or("default");
    let place = |variable: &str, file: &str| {
        let named = environment.get(variable).map(PathBuf::from);
        let home = environment
            .get("HOME")
            .map(|home| PathBuf::from(home).join(".aws").join(file));
        named.or(home)
    };
    let mut all = BTreeMap::new();
    for (variable, file, is_config) in [
        ("AWS_CONFIG_FILE", "config", true),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", false),
    ] {
        let Some(path) = place(variable, file) else {
            continue;
        };
        let text = match std::fs::metadata(&path) {
            Ok(meta) if meta.len() <= LONGEST => std::fs::read_to_string(&path),
            _ => continue,
        };
        let text = text.map_err(|e| {
            Status::permission_denied(format!("cannot read '{}': {e}", path.display()))
        })?;
        all.extend(section(&text, name, is_config));
    }
    if let (Some(name), true) = (chosen, all.is_empty()) {
        return Err(Status::new(
            Code::Unauthenticated,
            format!(
                "AWS_PROFILE names '{name}', of which neither ~/.aws/config nor ~/.aws/credentials says anything"
            ),
        ));
    }
    let has_key =
        all.contains_key("aws_access_key_id") || environment.contains_key("AWS_ACCESS_KEY_ID");
    for needed in [
        "role_arn",
        "sso_start_url",
        "sso_session",
        "credential_process",
    ] {
        if all.contains_key(needed) && !has_key {
            return Err(Status::new(
                Code::Unauthenticated,
                format!(
                    "AWS profile '{name}' needs {needed}, which is not supported: export keys with \
                 `aws configure export-credentials --profile {name} --format env`"
                ),
            ));
        }
    }
    Ok(all)
}

/// The settings of one section; nested ones are passed over.
fn section(text: &str, name: &str, is_config: bool) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with(['#', ';']) || trimmed.is_empty() {
            continue;
        }
        if let Some(title) = trimmed.strip_prefix('[').and_then(|t| t.split(']').next()) {
            let title = title.trim();
            inside = match title.strip_prefix("profile ") {
                Some(title) => is_config && title.trim() == name,
                None => title == name && (!is_config || name == "default"),
            };
        } else if let (true, false, Some((key, value))) = (
            inside,
            line.starts_with([' ', '\t']),
            trimmed.split_once('='),
        ) {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_told_apart() {
        let config = "[default]\nregion = r1\n[profile x]\nregion=r2\ns3 =\n  endpoint_url = nested\n# no\n[x]\nregion=r3\n";
        let region = |name, is_config| section(config, name, is_config).get("region").cloned();
        assert_eq!(region("default", true).as_deref(), Some("r1"));
        assert_eq!(region("x", true).as_deref(), Some("r2"));
        assert_eq!(region("x", false).as_deref(), Some("r3"));
        assert!(!section(config, "x", true).contains_key("endpoint_url"));
    }

    #[test]
    fn files_are_found_where_the_environment_says() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(
            at("c"),
            "[p]\naws_access_key_id = K\naws_secret_access_key = S\n",
        )
        .unwrap();
        std::fs::write(at("r"), "[profile p]\nrole_arn = arn\n").unwrap();
        let mut environment = Environment::from([
            ("AWS_PROFILE".to_owned(), "p".to_owned()),
            ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), at("c")),
        ]);
        assert_eq!(settings(&environment).unwrap()["aws_access_key_id"], "K");
        environment.insert("AWS_SHARED_CREDENTIALS_FILE".to_owned(), at("none"));
        assert!(settings(&environment).unwrap_err().message.contains("'p'"));
        environment.insert("AWS_CONFIG_FILE".to_owned(), at("r"));
        let refused = settings(&environment).unwrap_err();
        assert!(refused.message.contains("role_arn"), "{refused}");
    }
}
