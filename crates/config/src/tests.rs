//! Tests of the file: what it may hold, whose it may be, and which locations its tables are for.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tload::{ErrorKind, LoadOptions, Location, StoreOptions};
use tload_base::options::Form;

use super::*;
use crate::values::Kind;

fn parse(text: &str) -> Result<Config> {
    Config::parse(Path::new("/c.toml"), text, Some(Path::new("/home/me")))
}

fn options(config: &Config, locations: &[&str]) -> Result<Vec<(String, String)>> {
    let locations = locations.iter().map(|it| Location::parse(it).unwrap());
    let options = config.store_options(&locations.collect::<Vec<_>>())?;
    let pairs = options.iter();
    Ok(pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect())
}

/// Returns valid TOML for an option.
fn example(kind: Kind, name: &str) -> &'static str {
    match (kind, name) {
        (_, "engine") => "\"pread\"",
        (_, "cache") => "\"drop\"",
        (_, "order") => "\"file\"",
        (_, "share") => "\"none\"",
        (_, "on_peer_loss") => "\"read\"",
        (_, "align") => "64",
        (_, "cache_check") => "\"never\"",
        (_, "addressing") => "\"path\"",
        (_, "endpoint" | "proxy") => "\"http://host:9000\"",
        (_, "cache_dir" | "ca_file" | "service_account") => "\"/a/b\"",
        (Kind::Text, _) => "\"a\"",
        (Kind::Flag | Kind::FlagOrText, _) => "true",
        (Kind::Count, _) => "1_6",
        (Kind::Bytes, _) => "\"1 MiB\"",
        (Kind::Duration, _) => "2.5",
        (Kind::List, _) => "[\"http://a/b\", \"http://c/d\"]",
    }
}

#[test]
fn every_option_with_a_variable_can_be_set() {
    let (mut text, mut set) = ("[load]\n".to_owned(), Vec::new());
    for (key, _) in table::load() {
        let kind = table::kind_of_load(key.kind);
        text += key.name;
        text += " = ";
        text += example(kind, key.name);
        text += "\n";
        set.push(key.name);
    }
    let config = parse(&text).unwrap();
    let options = config.load_options().unwrap();
    assert!(set.len() > 10);
    for key in LoadOptions::KEYS {
        let is_set = set.contains(&key.name);
        assert_eq!(config.option(key.name).is_some(), is_set, "{}", key.name);
        let differs = key.value(&options) != key.value(&LoadOptions::default());
        // The example of this one is its default.
        assert!(differs == is_set || key.name == "hedge", "{}", key.name);
    }
}

#[test]
fn every_store_option_without_a_secret_can_be_set() {
    for key in table::store() {
        let example = example(table::kind_of_store(key.form), key.name);
        let (table, name) = match key.name.strip_prefix(table::CACHE) {
            Some(short) => ("cache", short),
            None if key.form == Form::Locations => ("store.\"s3://m/\"", key.name),
            None => ("store", key.name),
        };
        let text = format!("[{table}]\n{name} = {example}\n");
        match parse(&text) {
            Ok(config) => {
                assert!(!key.secret, "{text}");
                let setting = config.settings().next().unwrap();
                assert_eq!((setting.option, setting.line), (key.name, 2));
                let all = config.store_options(&[Location::parse("s3://m/a").unwrap()]);
                assert!(all.unwrap().get(key.name).is_some(), "{text}");
            }
            Err(error) => {
                assert!(key.secret, "{}", error.chain());
                let hint = error.hint().unwrap();
                assert!(
                    hint.contains(&format!("TLOAD_STORE to {}=", key.name)),
                    "{hint}"
                );
            }
        }
    }
}

#[test]
fn every_secret_key_has_its_variable() {
    let secret = table::store().filter(|key| key.secret).map(|key| key.name);
    let named = secrets::VARIABLES.map(|(key, _)| key);
    assert_eq!(secret.collect::<Vec<_>>(), named);
    for path in table::PATHS {
        assert!(table::store().any(|key| key.name == path), "{path}");
    }
    let lists = table::store().filter(|key| key.form == Form::Locations);
    assert_eq!(lists.map(|key| key.name).collect::<Vec<_>>(), table::LISTS);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_files_name_line_and_key() {
    for (text, wanted) in [
        ("a = ", "/c.toml:1: is not TOML: "),
        (
            "\n[laod]\n",
            "/c.toml:2: table \"laod\" is unknown\n  hint: did you mean \"load\"?",
        ),
        (
            "depth = 3\n",
            "/c.toml:1: table \"depth\" is unknown\n  hint: write it below [load]",
        ),
        (
            "\nregion = \"here\"\n",
            "/c.toml:2: table \"region\" is unknown\n  hint: write it below [store]",
        ),
        (
            "load = 3\n",
            "/c.toml:1: load: wanted a table, found a whole number",
        ),
        (
            "[load]\n\ndeepth = 3\n",
            "/c.toml:3: key \"deepth\" in [load] is unknown\n  hint: did you mean \"depth\"?",
        ),
        (
            "[load]\nwritable = true\n",
            "/c.toml:2: key \"writable\" in [load] is unknown\n  hint: it can be engine, depth, ",
        ),
        (
            "[load]\ndepth = \"3\"\n",
            "/c.toml:2: [load] depth: wanted a whole number, found a text",
        ),
        (
            "[load]\ndepth = 0\n",
            "/c.toml:2: [load] depth: \"0\" is not valid: it must lie between 1 and 4096",
        ),
        (
            "[load]\ndepth = 99999999999999999999\n",
            "/c.toml:2: [load] depth: \"99999999999999999999\" is not valid: it must lie between 1 and 4096",
        ),
        (
            "[load]\nhedge = \"yes\"\n",
            "/c.toml:2: [load] hedge: wanted true or false, found a text",
        ),
        (
            "[load]\ntimeout = 1979-05-27\n",
            "/c.toml:2: [load] timeout: wanted a number of seconds, or a duration such as \"30s\", found a date or time",
        ),
        (
            "[load]\ncache = \"mmap\"\n",
            "/c.toml:2: [load] cache: \"mmap\" is not valid: it can be auto, direct, buffered, drop, map",
        ),
        (
            "[cache]\ndirr = \"/c\"\n",
            "/c.toml:2: key \"dirr\" in [cache] is unknown\n  hint: did you mean \"dir\"?",
        ),
        (
            "[cache]\ndir = \"c\"\n",
            "/c.toml:2: [cache] dir: the path is \"c\", which depends on the current directory\n  hint: write a path that begins with / or ~/",
        ),
        (
            "[cache]\nlimit = \"all of it\"\n",
            "/c.toml:2: [cache] limit: store option cache_limit is \"all of it\"; it must be a size such as 500GiB or 2TB",
        ),
        (
            "[store]\ncache_dir = \"/c\"\n",
            "/c.toml:2: [store] cache_dir: is a key of [cache]\n  hint: write dir in the table [cache]",
        ),
        (
            "[store]\nregon = \"eu\"\n",
            "/c.toml:2: key \"regon\" in [store] is unknown\n  hint: did you mean \"region\"?",
        ),
        (
            "[store]\nregion = 5\n",
            "/c.toml:2: [store] region: wanted a text in quotes, found a whole number",
        ),
        (
            "[store]\nmirrors = [\"http://a/b\"]\n",
            "/c.toml:2: [store] mirrors: is a key of the table of a prefix: no place has the files of every location\n  \
             hint: write it in a table such as [store.\"s3://models/\"]",
        ),
        (
            "[store.\"s3://m/\"]\nmirrors = [5]\n",
            "/c.toml:2: [store.\"s3://m/\"] mirrors: wanted a list of URLs in quotes, found a list",
        ),
        (
            "[store]\n\"s3://m/\" = 5\n",
            "/c.toml:2: [store] s3://m/: wanted a table, found a whole number",
        ),
        (
            "[store.\"htps://m/\"]\nregion = \"eu\"\n",
            "/c.toml:1: a prefix in [store]: has a scheme that no store has\n  hint: did you mean \"https\"?",
        ),
        (
            "[store.\"file:///m/\"]\nretries = 1\n",
            "/c.toml:1: a prefix in [store]: has a scheme that no store has\n  hint: write the beginning of URLs, for example s3://models/",
        ),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{text}");
        let chain = error.chain();
        assert!(chain.starts_with(wanted), "{text}\n{chain}\n{wanted}");
    }
}

/// Nothing of a secret that a user wrote there after all is shown.
#[test]
fn secrets_are_errors_that_name_the_variable_and_do_not_show_them() {
    for (text, hint) in [
        (
            "[store]\nsecret_access_key = \"hunter2\"\n",
            "set AWS_SECRET_ACCESS_KEY, or TLOAD_STORE to secret_access_key=…",
        ),
        (
            "[store.\"hf://org/\"]\ntoken = \"hunter2\"\n",
            "set HF_TOKEN for the Hugging Face Hub, or TLOAD_STORE to token=…",
        ),
        (
            "[store.\"s3://m/\"]\nmirror_token = \"hunter2\"\n",
            "set TLOAD_STORE to mirror_token=…",
        ),
        (
            "[store]\nheader.authorization = \"hunter2\"\n",
            "set TLOAD_STORE to header.NAME=…",
        ),
        (
            "[store]\naws_secret_access_key = \"hunter2\"\n",
            "set TLOAD_STORE to aws_secret_access_key=…",
        ),
        (
            "[store]\nproxy = \"http://me:hunter2@proxy:3128\"\n",
            "set TLOAD_STORE to proxy=… instead",
        ),
        (
            "[store.\"s3://m/\"]\nmirrors = \"http://me:hunter2@host/m\"\n",
            "set TLOAD_STORE to mirrors=… instead",
        ),
        (
            "[store.\"https://me:hunter2@host/\"]\nretries = 1\n",
            "write the beginning of URLs, for example s3://models/",
        ),
        (
            "[store.\"https://host/?sig=hunter2\"]\nretries = 1\n",
            "write the beginning of URLs, for example s3://models/",
        ),
        (
            "[load]\nverify = \"https://me:hunter2@host/m.json\"\n",
            "set TLOAD_VERIFY instead",
        ),
        (
            "[load]\nverify = \"sha256:https://host/m.json?sig=hunter2\"\n",
            "set TLOAD_VERIFY instead",
        ),
        ("[store]\ntoken = hunter2\n", ""),
        ("[store]\ntoken = \"hunter2\n", ""),
    ] {
        let error = parse(text).expect_err(text);
        let chain = error.chain();
        assert!(!chain.contains("hunter2"), "{text}: {chain}");
        if !hint.is_empty() {
            assert_eq!(error.hint(), Some(hint), "{text}");
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn longest_prefix_decides_key_by_key() {
    let config = parse(
        r#"
        [cache]
        dir = "~/cache"
        [store]
        retries = 3
        region = "us-east-1"
        [store."s3://models/eu/"]
        region = "eu-west-1"
        mirrors = []
        [store."s3://models"]
        region = "eu-central-1"
        endpoint = "http://host:9000"
        mirrors = ["http://10.0.0.7:8080/models", "http://b/"]
        [store."hf://"]
        hf_cache = true
        [store."hf://org/name"]
        mirrors = "http://a/m"
        [store."oci://registry.io/team"]
        anonymous = true
        [store."https://host/with space/"]
        mirrors = ["s3://bucket/x"]
        "#,
    )
    .unwrap();
    let all = [("cache_dir", "/home/me/cache"), ("retries", "3")];
    let everywhere = [("region", "us-east-1")];
    let models = [("endpoint", "http://host:9000"), ("region", "eu-central-1")];
    for (location, wanted) in [
        ("/models/llama", &everywhere[..]),
        ("s3://models2/llama", &everywhere),
        ("s3://other/models/llama", &everywhere),
        (
            "s3://models/llama",
            &[
                models[0],
                models[1],
                (
                    "mirrors",
                    "http://10.0.0.7:8080/models/llama,http://b/llama",
                ),
            ],
        ),
        (
            "s3://models",
            &[
                models[0],
                models[1],
                ("mirrors", "http://10.0.0.7:8080/models,http://b"),
            ],
        ),
        (
            "s3://models/a b/model.safetensors",
            &[
                models[0],
                models[1],
                (
                    "mirrors",
                    "http://10.0.0.7:8080/models/a%20b,http://b/a%20b",
                ),
            ],
        ),
        (
            "s3://models/eu/llama",
            &[models[0], ("region", "eu-west-1")],
        ),
        ("hf://other/name", &[everywhere[0], ("hf_cache", "true")]),
        (
            "hf://org/name@main/sub",
            &[
                everywhere[0],
                ("hf_cache", "true"),
                ("mirrors", "http://a/m/sub"),
            ],
        ),
        ("hf://org/name2", &[everywhere[0], ("hf_cache", "true")]),
        (
            "oci://registry.io/team/llama:1",
            &[everywhere[0], ("anonymous", "true")],
        ),
        ("oci://registry.io/team2/llama:1", &everywhere),
        (
            "https://host/with space/a%20b?sig=x",
            &[everywhere[0], ("mirrors", "s3://bucket/x/a b")],
        ),
    ] {
        let mut wanted: Vec<_> = all.iter().chain(wanted).copied().collect();
        wanted.sort_unstable();
        let found = options(&config, &[location]).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .collect();
        assert_eq!(found, wanted, "{location}");
    }
}

#[test]
fn files_of_one_checkpoint_have_one_set_of_options() {
    let config = parse("[store.\"s3://a/\"]\nregion = \"eu-west-1\"\n").unwrap();
    let region = vec![("region".to_owned(), "eu-west-1".to_owned())];
    let of = |locations: &[&str]| options(&config, locations);
    assert_eq!(of(&[]).unwrap(), []);
    assert_eq!(of(&["s3://a/1", "/local/2", "s3://a/b/3"]).unwrap(), region);
    let error = of(&["s3://a/1", "s3://b/2"]).unwrap_err();
    assert_eq!(
        error.chain(),
        "/c.toml: gives the files of one checkpoint different store options\n  \
         hint: pass the store options of this checkpoint, or set TLOAD_CONFIG to nothing"
    );
}

#[test]
fn environment_leads_to_the_file() {
    let place = |variables: &[(&str, &str)]| {
        let value = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        };
        file::find(&value).map(|it| (it.path.to_str().unwrap().to_owned(), it.is_named))
    };
    for (variables, wanted) in [
        (&[][..], None),
        (
            &[("HOME", "/h")],
            Some(("/h/.config/tload/config.toml", false)),
        ),
        (&[("HOME", "")], None),
        (
            &[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")],
            Some(("/x/tload/config.toml", false)),
        ),
        (
            &[("HOME", "/h"), ("XDG_CONFIG_HOME", "x")],
            Some(("/h/.config/tload/config.toml", false)),
        ),
        (
            &[("HOME", "/h"), ("TLOAD_CONFIG", "c.toml")],
            Some(("c.toml", true)),
        ),
        (&[("HOME", "/h"), ("TLOAD_CONFIG", " ")], None),
        (&[("HOME", "/h"), ("TLOAD_CONFIG", "")], None),
    ] {
        let wanted = wanted.map(|(path, is_named)| (path.to_owned(), is_named));
        assert_eq!(place(variables), wanted, "{variables:?}");
    }
}

#[test]
fn owner_and_mode_are_those_of_ssh() {
    for (owner, mode, user, is_safe) in [
        (1000, 0o100_600, 1000, true),
        (1000, 0o100_644, 1000, true),
        (0, 0o100_644, 1000, true),
        (0, 0o100_444, 0, true),
        (1001, 0o100_600, 1000, false),
        (1000, 0o100_600, 0, false),
        (1000, 0o100_664, 1000, false),
        (1000, 0o100_646, 1000, false),
        (0, 0o100_666, 1000, false),
    ] {
        let checked = file::check_owner(owner, mode, user);
        assert_eq!(checked.is_ok(), is_safe, "{owner} {mode:o} {user}");
        if let Err(error) = checked {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.hint().is_some(), "{error}");
        }
    }
}

#[test]
fn file_is_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    let current =
        || file::current(|name| (name == VARIABLE).then(|| path.clone().into_os_string()));
    assert_eq!(current().unwrap_err().kind(), ErrorKind::NotFound);
    for depth in ["3", "45"] {
        fs::write(&path, format!("[load]\ndepth = {depth}\n")).unwrap();
        let config = current().unwrap();
        assert_eq!(config.option("depth"), Some(depth));
        assert_eq!(config.file(), Some(&*path));
        assert!(Arc::ptr_eq(&config, &current().unwrap()));
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
    let error = current().unwrap_err();
    assert!(error.message().contains("(mode 0622)"), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, b"a = \"\xff\"").unwrap();
    let error = current().unwrap_err();
    assert!(error.message().ends_with("not UTF-8 at byte 5"), "{error}");
    fs::write(&path, vec![b'#'; 1 << 21]).unwrap();
    let error = current().unwrap_err();
    assert!(
        error.message().ends_with("longer than 1048576 bytes"),
        "{error}"
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = current().unwrap_err();
    assert!(error.message().ends_with("not a regular file"), "{error}");

    let absent = |home: &Path| {
        let home = home.to_owned();
        file::current(move |name| (name == "HOME").then(|| home.clone().into_os_string()))
    };
    assert!(absent(folder.path()).unwrap().file().is_none());
    assert!(absent(Path::new("/dev/null")).unwrap().file().is_none());
}

#[test]
fn options_of_the_file_pass_the_checks_of_arguments() {
    let config = parse("[load]\nmemory_limit = \"2GiB\"\nverify = true\n").unwrap();
    let options = config.load_options().unwrap();
    assert_eq!(options.memory_limit, Some(2 << 30));
    assert_eq!(options.verify, tload::Verify::Auto);
    assert_eq!(config.store_options(&[]).unwrap().iter().count(), 0);
    assert!(StoreOptions::new().is_empty());
}
