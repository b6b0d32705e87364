//! Tests of lists in pages.

use super::*;

fn object(key: &str, len: u64) -> String {
    format!(
        "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:10.000Z</LastModified>\
         <ETag>&quot;x&quot;</ETag><Size>{len}</Size></Contents>",
        escape(key)
    )
}

fn prefix(prefix: &str) -> String {
    let prefix = escape(prefix);
    format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>")
}

fn page(inner: &str) -> String {
    format!("<?xml version='1.0'?>\n<ListBucketResult xmlns='urn:x'>{inner}</ListBucketResult>")
}

fn blobs(inner: &str, end: &str) -> String {
    format!("<EnumerationResults><Blobs>{inner}</Blobs>{end}</EnumerationResults>")
}

fn blob(name: &str, properties: &str) -> String {
    format!(
        "<Blob><Name>{name}</Name><Properties><Last-Modified>Mon, 02 Nov 2026 10:00:00 GMT\
         </Last-Modified><Etag>0x1</Etag><Content-Length>7</Content-Length>{properties}\
         </Properties></Blob>"
    )
}

fn gather(format: Format) -> Gathered {
    Gathered::new(format, Some(&Path::from("m")))
}

fn names(level: &Level) -> (Vec<&str>, Vec<&str>) {
    let objects = level.objects.iter().map(|it| it.location.as_ref());
    (
        objects.collect(),
        level.prefixes.iter().map(AsRef::as_ref).collect(),
    )
}

#[test]
fn entries_of_both_forms_are_read() {
    let mut objects = gather(Format::Objects);
    let inner = [object("m/", 0), object("m/a & b", 7), prefix("m/sub/")].join("\n  ");
    objects.take_page(page(&inner).as_bytes()).expect("a page");
    let level = objects.into_level();
    assert_eq!(names(&level), (vec!["m/a & b"], vec!["m/sub"]));
    let only = &level.objects[0];
    assert_eq!((only.len, only.modified), (Some(7), 1_767_225_610));
    assert_eq!(only.e_tag.as_deref(), Some("\"x\""));

    let mut azure = gather(Format::Blobs);
    let folder = "<ResourceType>directory</ResourceType>";
    let inner = [
        blob("m/a", ""),
        blob("m/dir", folder),
        "<BlobPrefix><Name>m/sub/</Name></BlobPrefix>".to_owned(),
    ];
    let text = blobs(&inner.concat(), "<NextMarker/>");
    let next = azure.take_page(text.as_bytes()).expect("a page");
    assert!(String::from_utf8_lossy(&next).contains("<NextMarker></NextMarker>"));
    let level = azure.into_level();
    assert_eq!(names(&level), (vec!["m/a"], vec!["m/sub"]));
    let only = &level.objects[0];
    assert_eq!((only.len, only.modified), (Some(7), 1_793_613_600));
}

#[test]
fn keys_that_are_no_paths_are_kept_apart() {
    let mut objects = gather(Format::Objects);
    let inner = [
        object("m/a", 1),
        object("m/a\u{1}b", 1),
        object("m/..", 1),
        object("m/ x ", 1),
        prefix("m//"),
        prefix("m/./"),
        prefix("m/b\u{7f}/"),
        // From a server that ignores the delimiter.
        object("m/deep/x/y", 1),
        object("m//x", 1),
    ];
    objects
        .take_page(page(&inner.concat()).as_bytes())
        .expect("a page");
    let level = objects.into_level();
    assert_eq!(names(&level), (vec!["m/a", "m/ x "], vec!["m/deep"]));
    let unusable = ["m/..", "m/./", "m//", "m/a\u{1}b", "m/b\u{7f}/"];
    assert_eq!(level.unusable, unusable);
    let mut objects = gather(Format::Objects);
    let text = page(&object("m/a$b", 1)).replace('$', "\u{1}").into_bytes();
    let broken: Vec<_> = text
        .iter()
        .map(|&byte| if byte == 1 { 0xff } else { byte })
        .collect();
    objects.take_page(&broken).expect("a page");
    assert_eq!(objects.into_level().unusable, ["m/a\u{fffd}b"]);
    let mut root = Gathered::new(Format::Objects, None);
    let inner = [prefix("/"), prefix("m/"), object("x", 1)].concat();
    root.take_page(page(&inner).as_bytes()).expect("a page");
    let level = root.into_level();
    assert_eq!(names(&level), (vec!["x"], vec!["m"]));
    assert_eq!(level.unusable, ["/"]);
}

#[test]
fn empty_objects_that_stand_for_folders_are_dropped() {
    let mut objects = gather(Format::Objects);
    let inner = [
        object("m/a", 0),
        object("m/b", 1),
        prefix("m/a/"),
        prefix("m/b/"),
    ]
    .concat();
    objects.take_page(page(&inner).as_bytes()).expect("a page");
    assert_eq!(
        names(&objects.into_level()),
        (vec!["m/b"], vec!["m/a", "m/b"])
    );
}

#[test]
fn page_says_what_follows() {
    let rest = |format, text: &str| Page::parse(format, text.as_bytes()).map(|it| it.rest);
    let token = "<NextContinuationToken>t</NextContinuationToken>";
    let marker = "<NextMarker>m/a</NextMarker>";
    let (yes, no) = (
        "<IsTruncated>true</IsTruncated>",
        "<IsTruncated>false</IsTruncated>",
    );
    let named = || Rest::Token("t".to_owned());
    let unnamed = || Rest::Unnamed(Some("m/a".to_owned()));
    let full = |most: usize| (0..most).map(|at| object(&format!("m/{at}"), 1)).collect();
    let full: Vec<String> = full(1000);
    let (full, less) = (full.concat(), full[1..].concat());
    for (inner, wanted) in [
        (String::new(), Rest::Nothing),
        (no.to_owned(), Rest::Nothing),
        (format!("{no}{marker}"), Rest::Nothing),
        (format!("{no}<NextContinuationToken/>"), Rest::Nothing),
        (format!("{yes}{token}"), named()),
        (format!("{yes}{token}{marker}"), named()),
        (token.to_owned(), named()),
        (yes.to_owned(), Rest::Unnamed(None)),
        (
            "<IsTruncated> TRUE </IsTruncated>".to_owned(),
            Rest::Unnamed(None),
        ),
        (format!("{yes}{marker}"), unnamed()),
        (marker.to_owned(), unnamed()),
        (full.clone(), Rest::Unnamed(None)),
        (format!("{full}{no}"), Rest::Nothing),
        (format!("{full}<MaxKeys>2000</MaxKeys>"), Rest::Nothing),
        (less.clone(), Rest::Nothing),
        (format!("<MaxKeys>999</MaxKeys>{less}"), Rest::Unnamed(None)),
    ] {
        let found = rest(Format::Objects, &page(&inner)).expect("a page");
        assert_eq!(found, wanted, "{}", &inner[..inner.len().min(200)]);
    }
    for (end, wanted) in [
        ("<NextMarker>t</NextMarker>", named()),
        ("<NextMarker/>", Rest::Nothing),
        ("<NextMarker></NextMarker>", Rest::Nothing),
        ("", Rest::Nothing),
        ("<MaxResults>1</MaxResults>", Rest::Unnamed(None)),
    ] {
        let text = blobs(&blob("m/a", ""), end);
        assert_eq!(rest(Format::Blobs, &text).expect("a page"), wanted, "{end}");
    }
}

#[test]
fn other_documents_are_no_lists() {
    let whole = page(&object("m/a", 1));
    for (format, text, words) in [
        (Format::Objects, "<html><body/></html>", "malformed"),
        (Format::Objects, "", "malformed"),
        (Format::Objects, "{}", "malformed"),
        (Format::Objects, &whole[..whole.len() - 1], "malformed"),
        (Format::Objects, &whole[..whole.len() - 20], "malformed"),
        (Format::Objects, "<ListBucketResult>", "malformed"),
        (Format::Blobs, &whole, "malformed"),
        (
            Format::Blobs,
            "<EnumerationResults></EnumerationResults>",
            "malformed",
        ),
        (
            Format::Objects,
            "<Error><Code>SlowDown</Code><Message>m</Message></Error>",
            "SlowDown",
        ),
    ] {
        let error = gather(format).take_page(text.as_bytes()).expect_err(text);
        assert_eq!(error.kind, ErrorKind::Remote, "{text}");
        assert!(error.message.contains(words), "{text}: {}", error.message);
        assert!(error.hint.is_some());
    }
}

#[test]
fn truncated_page_without_token_goes_on_after_its_last_key_or_fails() {
    let truncated = |inner: &[String]| {
        page(&format!(
            "<IsTruncated>true</IsTruncated>{}",
            inner.concat()
        ))
    };
    let next = |pages: &[String]| {
        let mut gathered = gather(Format::Objects);
        for page in pages {
            gathered.take_page(page.as_bytes())?;
        }
        Ok::<_, Classification>(gathered.after().map(str::to_owned))
    };
    let objects = |keys: &[&str]| keys.iter().map(|key| object(key, 1)).collect::<Vec<_>>();
    let first = truncated(&objects(&["m/a", "m/c"]));
    for (pages, wanted) in [
        (vec![first.clone()], "m/c"),
        (vec![first.clone(), truncated(&objects(&["m/d"]))], "m/d"),
        (vec![truncated(&[object("m/a", 1), prefix("m/z/")])], "m/a"),
        (
            vec![
                truncated(&[object("m/a", 1), prefix("m/z/")]),
                truncated(&[prefix("m/z/")]),
            ],
            "m/z/",
        ),
        (
            vec![truncated(&[
                object("m/x", 1),
                "<NextMarker>m/b</NextMarker>".to_owned(),
            ])],
            "m/b",
        ),
    ] {
        assert_eq!(next(&pages).expect("goes on").as_deref(), Some(wanted));
    }
    for pages in [
        // The server does not know the parameter.
        vec![first.clone(), first.clone()],
        vec![
            first.clone(),
            truncated(&[object("m/d", 1), prefix("m/b/")]),
        ],
        // No order, and no key to go on after.
        vec![truncated(&objects(&["m/c", "m/a"]))],
        vec![truncated(&[])],
        vec![truncated(&[prefix("m/z/")]), truncated(&[prefix("m/z/")])],
    ] {
        let error = next(&pages).expect_err("cannot go on");
        assert!(error.message.contains("ends early"), "{}", error.message);
    }
    let last = page(&objects(&["m/d", "m/e"]).concat());
    let mut gathered = gather(Format::Objects);
    for page in [&first, &last] {
        gathered.take_page(page.as_bytes()).expect("a page");
    }
    let level = gathered.into_level();
    assert_eq!(names(&level).0, ["m/a", "m/c", "m/d", "m/e"]);
}

#[test]
fn list_does_not_go_on_after_a_replaced_key() {
    let encoding = "<EncodingType>url</EncodingType>";
    for (start, key, goes_on) in [
        ("", "m/a", true),
        ("", "m/a\u{fffd}", true),
        ("", "m/a\u{1}", false),
        (encoding, "m/a%EF%BF%BD", true),
        (encoding, "m/a%FF", false),
    ] {
        let inner = format!("<IsTruncated>true</IsTruncated>{start}{}", object(key, 1));
        let mut text = page(&inner).into_bytes();
        for byte in &mut text {
            *byte = if *byte == 1 { 0xff } else { *byte };
        }
        match gather(Format::Objects).take_page(&text) {
            Ok(_) => assert!(goes_on, "{key:?}"),
            Err(error) => {
                assert!(!goes_on, "{key:?}: {}", error.message);
                assert!(error.message.contains("ends early"), "{}", error.message);
            }
        }
    }
}

#[test]
fn encoded_names_are_decoded() {
    let inner = format!(
        "<EncodingType>url</EncodingType>{}{}",
        object("m/a%2Bb+c", 1),
        prefix("m%2Fs%C3%A9/")
    );
    let mut gathered = gather(Format::Objects);
    gathered.take_page(page(&inner).as_bytes()).expect("a page");
    let level = gathered.into_level();
    assert_eq!(names(&level), (vec!["m/a+b c"], vec!["m/sé"]));
    let mut plain = gather(Format::Objects);
    plain
        .take_page(page(&object("m/a%2Bb+c", 1)).as_bytes())
        .expect("a page");
    assert_eq!(names(&plain.into_level()).0, ["m/a%2Bb+c"]);
}

#[test]
fn keys_elsewhere_are_errors() {
    for inner in [object("n/a", 1), prefix("ma/")] {
        let error = gather(Format::Objects).take_page(page(&inner).as_bytes());
        let error = error.expect_err("elsewhere");
        assert!(
            error.message.contains("not below the prefix"),
            "{}",
            error.message
        );
    }
}
