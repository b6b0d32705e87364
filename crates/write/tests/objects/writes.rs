//! Checkpoints in stores: their objects, and writers that meet.

use tload_base::error::ErrorKind;
use tload_write::{WriteOptions, Writer, remove_incomplete};

use crate::expected::{fill, specs, tensors, write_to};
use crate::sites::{Site, on_each};

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn checkpoint_is_written_read_and_replaced() {
    on_each(|site| {
        // Buffers have 8 MiB: the second model has a file in several parts.
        let (old, new) = (tensors(6, 9000, 1), tensors(5, 20 << 20, 2));
        let location = site.location("a/model");
        let options = site.writing().max_shard_bytes(20_000);
        let first = write_to(&location, &old, options.clone()).expect(site.name);
        assert_eq!(first.replaced, None);
        assert_eq!(
            site.read("a/model").expect("is there"),
            old,
            "{}",
            site.name
        );
        let mut wanted = first.files.clone();
        wanted.push(INDEX.to_owned());
        assert_eq!(
            site.objects("a/model").into_keys().collect::<Vec<_>>(),
            wanted
        );

        let refused = Writer::planned(&location, specs(&new), options.clone().replace(false));
        assert_eq!(
            refused.expect_err("is there").kind(),
            ErrorKind::InvalidRequest
        );
        let second = write_to(&location, &new, options.max_shard_bytes(40 << 20)).expect(site.name);
        assert!(second.replaced.is_some());
        assert_eq!(
            site.read("a/model").expect("is there"),
            new,
            "{}",
            site.name
        );
        // The shards of the old index are untouched, so that its readers find them.
        let objects = site.objects("a/model");
        assert!(first.files.iter().all(|file| objects.contains_key(file)));
    });
}

#[test]
fn tensors_that_come_one_after_another_are_written() {
    on_each(|site| {
        let model = tensors(5, 12 << 20, 3);
        let location = site.location("stream");
        let options = site.writing().max_shard_bytes(15 << 20);
        let mut writer = Writer::create(&location, options).expect("begins");
        for (name, (dtype, shape, bytes)) in &model {
            writer.tensor(name, *dtype, shape, bytes).expect(site.name);
        }
        assert!(
            site.read("stream").is_none(),
            "nothing is there before the end"
        );
        let report = writer.finish().expect(site.name);
        assert!(report.files.len() > 1);
        assert_eq!(
            site.read("stream").expect("is there"),
            model,
            "{}",
            site.name
        );
    });
}

#[test]
fn second_of_two_writers_fails() {
    on_each(|site| {
        let (first, second) = (tensors(4, 1000, 2), tensors(5, 1100, 3));
        for prefix in ["new", "old", "verified"] {
            let location = site.location(prefix);
            if prefix == "old" {
                write_to(&location, &tensors(3, 900, 1), site.writing()).expect("is written");
            }
            let begin = |tensors| {
                let options = site.writing().manifest(prefix == "verified");
                let begun = Writer::planned(&location, specs(tensors), options);
                let mut writer = begun.expect("begins");
                fill(&mut writer, tensors).expect("is written");
                writer
            };
            let (winner, loser) = (begin(&first), begin(&second));
            let report = winner.finish().expect("wins");
            let error = loser.finish().expect_err("loses");
            assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
            assert!(error.to_string().contains(&report.id), "{error}");
            assert_eq!(site.read(prefix).expect("is there"), first);
            // The loser's shards are removed, those of the winner and of the old index are not.
            let objects = site.objects(prefix);
            assert_eq!(
                objects.len(),
                if prefix == "new" { 2 } else { 3 },
                "{}",
                site.name
            );
            if prefix == "verified" {
                let text = String::from_utf8_lossy(&objects["tload-manifest.json"]);
                assert!(text.contains(&report.id), "{}: {text}", site.name);
            }
        }
    });
}

#[test]
fn leftovers_go_by_explicit_step() {
    on_each(|site| {
        let location = site.location("left");
        let model = tensors(4, 1000, 1);
        let old = write_to(&location, &model, site.writing()).expect("is written");
        wait_for_next_second();
        let new = write_to(&location, &model, site.writing()).expect("is written");
        // This one could still replace the index.
        let mut running =
            Writer::planned(&location, specs(&model), site.writing()).expect("begins");
        fill(&mut running, &model).expect("is written");
        let found = remove_incomplete(&location, &site.options()).expect(site.name);
        let removed: Vec<_> = found.iter().filter(|it| it.removed).collect();
        assert_eq!(removed.len(), 1, "{found:?}");
        assert!(removed[0].location.contains(&old.id), "{found:?}");
        let objects = site.objects("left");
        assert!(new.files.iter().all(|file| objects.contains_key(file)));
        assert!(old.files.iter().all(|file| !objects.contains_key(file)));
        running.finish().expect("is not disturbed");
    });
}

/// Waits until objects that are written now have a later time of modification than all others.
fn wait_for_next_second() {
    let second = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.expect("after 1970").as_secs()
    };
    let begun = second();
    while second() < begun + 2 {
        std::thread::yield_now();
    }
}

/// Change of options.
type Change = fn(WriteOptions) -> WriteOptions;

#[test]
fn prefixes_that_readers_would_mix_are_refused() {
    on_each(|site| {
        site.put("foreign/model.safetensors", b"old");
        site.put("full/readme.md", b"old");
        let with_manifest: Change = |it| it.manifest(true);
        for (prefix, change) in [("verified", with_manifest), ("bare", |it| it)] {
            let options = change(site.writing());
            write_to(&site.location(prefix), &tensors(3, 900, 1), options).expect(site.name);
        }
        let cases: [(&str, Change, &str); 6] = [
            ("verified", with_manifest, "manifest"),
            ("verified", |it| it, "manifest"),
            ("bare", with_manifest, "manifest"),
            ("foreign", |it| it, "model.safetensors"),
            ("full", |it| it.plain_names(true), "readme.md"),
            ("one/model.safetensors", |it| it, "single object"),
        ];
        for (prefix, change, wanted) in cases {
            let options = change(site.writing());
            let begun = Writer::planned(&site.location(prefix), Vec::new(), options);
            let error = begun.expect_err(wanted);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
            assert!(error.to_string().contains(wanted), "{error}");
        }
    });
}

#[test]
fn plain_names_are_claimed() {
    on_each(|site| {
        let location = site.location("plain");
        let model = tensors(4, 5000, 1);
        let options = site.writing().plain_names(true);
        let begin = || Writer::planned(&location, specs(&model), options.clone());
        let mut first = begin().expect("begins");
        let error = begin().expect_err("is claimed");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}: {error}", site.name);
        let claim = site
            .objects("plain")
            .remove(".tload-write")
            .expect("a claim");
        let wanted = format!("write {} was faster", String::from_utf8_lossy(&claim));
        assert!(
            error.to_string().contains(&wanted) && error.to_string().contains(".tload-write"),
            "{}: {error}",
            site.name
        );
        fill(&mut first, &model).expect("is written");
        let report = first.finish().expect(site.name);
        assert_eq!(report.files, ["model.safetensors"]);
        assert_eq!(keys(site, "plain"), ["model.safetensors"]);
        // A writer that fails gives it back.
        let location = site.location("plain.sharded");
        let few = options.clone().max_shard_bytes(6000);
        drop(Writer::planned(&location, specs(&model), few.clone()).expect("begins"));
        let report = write_to(&location, &model, few).expect(site.name);
        assert!(
            report.files[0].starts_with("model-00001-of-0000"),
            "{report:?}"
        );
        assert_eq!(site.read("plain.sharded").expect("is there"), model);
    });
}

fn keys(site: &Site, prefix: &str) -> Vec<String> {
    site.objects(prefix).into_keys().collect()
}

#[test]
fn manifest_is_written_once() {
    on_each(|site| {
        let location = site.location("manifest");
        let options = site.writing().manifest(true);
        let model = tensors(4, 5000, 1);
        write_to(&location, &model, options.clone()).expect(site.name);
        let text = &site.objects("manifest")["tload-manifest.json"];
        let manifest = tload_verify::Manifest::parse(text).expect("a manifest");
        assert_eq!(manifest.files.len(), 2);
        let again = Writer::planned(&location, specs(&model), options);
        assert_eq!(
            again.expect_err("is there").kind(),
            ErrorKind::InvalidRequest
        );
    });
}
