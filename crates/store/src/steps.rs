//! Counts steps of work that grows with a server's answer, for tests that compare it at several
//! sizes. Nothing is counted outside of unit tests.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one step.
pub(crate) fn step() {
    steps(1);
}

/// Counts several steps.
pub(crate) fn steps(number: usize) {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + u64::try_from(number).unwrap_or(u64::MAX)));
    #[cfg(not(test))]
    let _ = number;
}

/// Returns the number of steps of `work` on this thread.
#[cfg(test)]
pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> u64 {
    let before = STEPS.with(Cell::get);
    drop(work());
    STEPS.with(Cell::get) - before
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;
    use serde_json::{Value, json};

    use super::*;
    use crate::lists::object_list::{Format, Gathered};
    use crate::protocols::hub::Commit;
    use crate::protocols::hub::bucket::{level, next_page};
    use crate::protocols::hub::xet::terms_of_one_xorb;
    use crate::protocols::oci::{MANIFESTS, Manifest};

    const NUMBER: usize = 50_000;

    /// Returns a hub's description of a repository with these files.
    fn description(names: impl Iterator<Item = String>) -> Vec<u8> {
        let siblings: Vec<Value> = names.map(|name| json!({"rfilename": name})).collect();
        let answer = json!({"sha": "0".repeat(40), "siblings": siblings});
        answer.to_string().into_bytes()
    }

    /// Lists all folders of a repository, as a copy does.
    fn walk(description: &[u8]) {
        let commit = Commit::parse(description).expect("a description");
        let mut folders = vec![None];
        while let Some(folder) = folders.pop() {
            let level = commit.level(folder.as_ref());
            folders.extend(level.prefixes.into_iter().map(Some));
        }
    }

    fn flat(number: usize) {
        walk(&description((0..number).map(|at| format!("{at}.json"))));
    }

    fn wide(number: usize) {
        walk(&description((0..number).map(|at| format!("{at}/x"))));
    }

    /// A file in each of 1000 folders below each other, for the default number.
    fn deep(number: usize) {
        let depth = number / 50;
        let folder = |at: usize| "d/".repeat(at);
        walk(&description(
            (0..depth).map(|at| format!("{}x", folder(at))),
        ));
    }

    fn unusable(number: usize) {
        walk(&description(
            (0..number).map(|at| format!("{}/a//{at}", at % 100)),
        ));
    }

    fn manifest(number: usize) {
        let layer = json!({"mediaType": "application/vnd.docker.ai.safetensors", "size": 1,
                           "digest": format!("sha256:{}", "a".repeat(64))});
        let answer = json!({"mediaType": MANIFESTS[0], "layers": vec![layer; number]});
        let parsed = Manifest::parse(answer.to_string().as_bytes(), None);
        let Ok(Manifest::Files(files)) = parsed else {
            panic!("no files");
        };
        assert_eq!(files.iter().count(), number);
    }

    fn links(number: usize) {
        let links = vec!["<http://h/p>; rel=prev, "; number].concat();
        let mut headers = http::HeaderMap::new();
        headers.insert(http::header::LINK, links.parse().expect("a header"));
        assert_eq!(next_page(&headers), Ok(None));
    }

    fn parameters(number: usize) {
        let link = format!("<http://h/p>{}", "; a=b".repeat(number));
        let mut headers = http::HeaderMap::new();
        headers.insert(http::header::LINK, link.parse().expect("a header"));
        assert_eq!(next_page(&headers), Ok(None));
    }

    fn bucket(number: usize) {
        let items = |page: usize| (0..100).map(move |at| format!("m/{page}/{at}"));
        let items = |page| items(page).map(|path| json!({"type": "file", "path": path}));
        let pages = (0..number / 100).map(|page| items(page).collect::<Value>().to_string());
        let pages: Vec<_> = pages.map(String::into_bytes).collect();
        level(&pages, Some(&Path::from("m"))).expect("a list");
    }

    fn objects(number: usize) {
        let mut gathered = Gathered::new(Format::Objects, None);
        let entry = |at: usize| {
            let prefix = format!("<CommonPrefixes><Prefix>{at}/</Prefix></CommonPrefixes>");
            format!("<Contents><Key>{at}</Key></Contents>{prefix}")
        };
        let entries: String = (0..number).map(entry).collect();
        let page = format!(
            "<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        );
        gathered.take_page(page.as_bytes()).expect("a page");
        assert_eq!(gathered.into_level().objects.len(), number);
    }

    fn terms(number: usize) {
        terms_of_one_xorb(number / 16);
    }

    /// Twice the input makes twice the work, not four times: the work is linear.
    #[test]
    fn work_is_linear_in_the_answers_of_servers() {
        for (name, work) in [
            ("flat repository", flat as fn(usize)),
            ("wide repository", wide),
            ("deep repository", deep),
            ("repository of unusable names", unusable),
            ("OCI manifest", manifest),
            ("Link header", links),
            ("Link header with parameters", parameters),
            ("pages of a hub's bucket", bucket),
            ("page of objects", objects),
            ("terms of a xorb", terms),
        ] {
            let (once, twice) = (steps_of(|| work(NUMBER)), steps_of(|| work(2 * NUMBER)));
            assert!(
                twice <= 2 * once + once / 10 + 100,
                "{name}: {once}, {twice}"
            );
            assert!(once <= 50 * NUMBER as u64, "{name}: {once}");
        }
    }
}
