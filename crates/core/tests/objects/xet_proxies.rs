//! Proxies that variables name, for models in the content store of a hub: the hub, the content
//! store and the server of presigned URLs are reached like the hosts of other clients.

use tload_testbed::{ForwardProxy, Hub};

use crate::alone;
use crate::fixtures::folder;
use crate::hubs::{MODEL, Model};

const CHILD: &str = "credentials::loads_case_location";

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn content_store_is_read_through_proxy_as_other_hosts() {
    let (hub, model) = (Hub::start(), Model::new(1));
    hub.keep_in_xet();
    hub.commit(MODEL, "main", &model.files());
    let proxy = ForwardProxy::start();
    let authority = |url: String| url.strip_prefix("http://").expect("no TLS").to_owned();
    // Xorbs and the bridge are at one address.
    let (front, store) = (authority(hub.url()), authority(hub.store_url()));
    let files = authority(hub.files().url());
    let (address, gone) = (proxy.address(), "127.0.0.1:1");
    let (location, home) = (format!("hf://{MODEL}"), folder());
    let home = home.path().to_str().expect("UTF-8");
    // PROXY, HUB, STORE and FILES are addresses; the proxy is asked for the last ones.
    let table = "
        no_proxy=a : -
        http_proxy=http://PROXY : HUB STORE FILES
        http_proxy=PROXY : HUB STORE FILES
        http_proxy=me:pw@PROXY : HUB STORE FILES
        HTTP_PROXY=PROXY : HUB STORE FILES
        HTTP_PROXY=PROXY REQUEST_METHOD=GET : -
        all_proxy=PROXY : HUB STORE FILES
        ALL_PROXY=http://PROXY : HUB STORE FILES
        http_proxy=PROXY all_proxy=GONE : HUB STORE FILES
        HTTP_PROXY=GONE http_proxy=PROXY : HUB STORE FILES
        https_proxy=PROXY : -
        HTTPS_PROXY=PROXY : -
        all_proxy=PROXY no_proxy=* : -
        all_proxy=PROXY NO_PROXY=* : -
        all_proxy=PROXY NO_PROXY=* no_proxy=a : HUB STORE FILES
        all_proxy=PROXY no_proxy=127.0.0.1 : -
        all_proxy=PROXY no_proxy=127.9.9.9/8 : -
        all_proxy=PROXY no_proxy=127.0.0.2/31 : HUB STORE FILES
        all_proxy=PROXY no_proxy=localhost : HUB STORE FILES
        all_proxy=PROXY no_proxy=a,FILES : HUB STORE
        all_proxy=PROXY no_proxy=HUB,a : STORE FILES
        all_proxy=PROXY no_proxy=STORE : HUB FILES
        all_proxy=PROXY no_proxy=HUB,FILES : STORE
        all_proxy=PROXY no_proxy=HUB,FILES,STORE : -
        all_proxy=PROXY proxy=http://PROXY : HUB STORE FILES
        proxy=http://PROXY : HUB STORE FILES
        no_proxy=FILES proxy=http://PROXY : HUB STORE";
    for row in table.trim().lines() {
        let addressed = |word: &str| {
            let pairs = [
                ("PROXY", &*address),
                ("HUB", &front),
                ("STORE", &store),
                ("FILES", &files),
                ("GONE", gone),
            ];
            // Not in the name of a variable.
            let (name, value) = word.split_once('=').unwrap_or(("", word));
            let value = pairs
                .iter()
                .fold(value.to_owned(), |text, (from, to)| text.replace(from, to));
            (name.to_owned(), value)
        };
        let (set, wanted) = row.rsplit_once(": ").expect(row);
        let (options, variables): (Vec<_>, Vec<_>) = set
            .split_whitespace()
            .map(addressed)
            .partition(|(name, _)| name == "proxy");
        let options = options
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let options = [format!("endpoint={} token=hf_x", hub.url())]
            .into_iter()
            .chain(options)
            .collect::<Vec<_>>()
            .join(" ");
        let mut all = vec![
            ("HOME", home),
            ("CASE_LOCATION", &*location),
            ("CASE_OPTIONS", &*options),
        ];
        all.extend(variables.iter().map(|(name, value)| (&**name, &**value)));
        let before = (hub.queries().len(), xorbs(&hub));
        let output = alone::run(CHILD, &all);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("OUTCOME loaded "), "{row}: {text}");
        let after = (hub.queries().len(), xorbs(&hub));
        let is_read = before.0 < after.0 && before.1 < after.1;
        assert!(is_read, "{row}: not from the content store");
        let mut asked = proxy.asked();
        asked.sort();
        asked.dedup();
        let mut wanted: Vec<_> = wanted
            .split_whitespace()
            .filter(|word| *word != "-")
            .map(|word| addressed(word).1)
            .collect();
        wanted.sort();
        assert_eq!(asked, wanted, "{row}");
    }
}

/// Returns the number of requests for xorbs so far.
fn xorbs(hub: &Hub) -> usize {
    let requests = hub.files().requests();
    let is_xorb = |path: &str| path.starts_with("xorbs/");
    requests.iter().filter(|it| is_xorb(&it.path)).count()
}
