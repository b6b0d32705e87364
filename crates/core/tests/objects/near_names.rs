//! Did-you-mean for names in stores: one list of the parent after a name that does not exist.

use std::rc::Rc;
use std::sync::Arc;

use tload::{Error, ErrorKind};
use tload_testbed::{Fault, FaultyServer, Operation, Rule};

use crate::fixtures::even;
use crate::sites::{Site, faulty_at, on_all_sites};

/// Opens a name that does not exist.
fn missing(site: &Site, path: &str) -> Error {
    let error = site.checkpoint(path).expect_err(path);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{path}: {error}");
    error
}

fn near_names(site: &Rc<Site>) {
    let file = even("t", 1, 2, 64);
    for key in ["near/llama/model.safetensors", "near/big/a.safetensors"] {
        site.put(key, &file);
    }
    for (path, near) in [
        ("near/llam", "llama"),
        ("near/llama/modle.safetensors", "model.safetensors"),
        ("near/llama/model.safetensor", "model.safetensors"),
        ("near/bgi", "big"),
    ] {
        let error = missing(site, path);
        let hint = error.hint().unwrap_or_default();
        // Web servers list in many ways, and these in none that is known.
        let wanted = format!("did you mean {near:?}?");
        assert_eq!(hint == wanted, site.lists(), "{path}: {hint}");
    }
    let hint = missing(site, "near/nothing_like_it.safetensors")
        .hint()
        .map(str::to_owned);
    assert!(hint.is_none_or(|hint| !hint.contains("did you mean")));
}

on_all_sites!(near_names);

/// Returns the hint for a misspelt name under a fault of lists, and the number of lists.
fn hint_with(fault: Option<Fault>) -> (String, usize) {
    let server = Arc::new(FaultyServer::start());
    let mut site = faulty_at(&server);
    site.options.set("retries", "0").expect("an option");
    site.put("llama/model.safetensors", &even("t", 1, 2, 64));
    if let Some(fault) = fault {
        server.fault(Rule::always(fault).on(Operation::List));
    }
    let hint = missing(&site, "llama/modle.safetensors")
        .hint()
        .map(str::to_owned);
    let requests = server.requests();
    let lists = requests.iter().filter(|it| it.operation == Operation::List);
    (hint.expect("always one"), lists.count())
}

#[test]
fn near_name_costs_one_list() {
    let near = "did you mean \"model.safetensors\"?".to_owned();
    assert_eq!(hint_with(None), (near, 1));
}

#[test]
fn failing_list_leaves_the_error_of_the_name() {
    let stores = ("check bucket, key and endpoint".to_owned(), 1);
    for fault in [
        Fault::Status(403, "AccessDenied".to_owned()),
        Fault::Status(500, "InternalError".to_owned()),
        Fault::CutBeforeHeaders,
        // The error waits a few seconds for the list, not for its timeout.
        Fault::StallHeaders,
    ] {
        let shown = format!("{fault:?}");
        assert_eq!(hint_with(Some(fault)), stores, "{shown}");
    }
}
