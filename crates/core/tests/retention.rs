//! Memory retained by a few kept tensors of a large load: little more than their own, and their
//! bytes stay right. Runs in a process of its own, since it measures resident memory.

use std::io::Write;

use tload::{Dtype, LoadOptions, Loader, Location};
use tload_testing::fixtures::Rng;

const MIB: usize = 1 << 20;
const SHARDS: usize = 8;
const SHARD_BYTES: usize = 256 * MIB;
const MEMORY_LIMIT: usize = 64 * MIB;
/// One tensor in this many is kept.
const KEPT_ONCE_IN: usize = 17;
/// Memory that a small tensor may retain beside its own: the region that it shares
/// (`plan/split.rs`), with room for its edges.
const SHARED_BYTES: usize = MIB + 64 * 1024;

/// Lengths of tensors: experts, norms, biases, all at odd offsets.
const LENGTHS: [usize; 7] = [6 * MIB + 40, 4096, 700_001, 24, 3 * MIB, 90_000, 1_200_008];

/// Returns the current and the peak resident memory, bytes.
fn resident() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let kib = |key: &str| -> usize {
        let line = status
            .lines()
            .find(|line| line.starts_with(key))
            .expect("in every status");
        line.split_whitespace()
            .nth(1)
            .and_then(|it| it.parse().ok())
            .expect("a number of kB")
    };
    (kib("VmRSS:") << 10, kib("VmHWM:") << 10)
}

/// Returns the bytes of tensor `index`: a slice of random bytes at an offset that depends on the
/// index. Fast to write and to check.
fn content(random: &[u8], index: usize, len: usize) -> &[u8] {
    let start = index.wrapping_mul(7919 * 64) % (random.len() - len);
    &random[start..start + len]
}

/// Writes a shard without holding it in memory: first the header, then the tensors. Returns the
/// number of the next tensor.
fn write_shard(path: &std::path::Path, random: &[u8], first: usize) -> usize {
    let mut lengths = Vec::new();
    while lengths.iter().sum::<usize>() < SHARD_BYTES {
        lengths.push(LENGTHS[(first + lengths.len()) % LENGTHS.len()]);
    }
    let mut offset = 0;
    let entries: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(index, len)| {
            let begin = offset;
            offset += len;
            let name = first + index;
            format!(
                r#""{name}":{{"dtype":"{}","shape":[{len}],"data_offsets":[{begin},{offset}]}}"#,
                Dtype::U8
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut file = std::fs::File::create(path).expect("a new file");
    let mut write = |bytes: &[u8]| file.write_all(bytes).expect("the disk has room for 2 GiB");
    write(&(header.len() as u64).to_le_bytes());
    write(header.as_bytes());
    for (index, len) in lengths.iter().enumerate() {
        write(content(random, first + index, *len));
    }
    first + lengths.len()
}

#[test]
fn kept_tensors_of_large_load_retain_little_else() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder");
    let random = Rng::new(1).bytes(16 * MIB);
    let mut tensors = 0;
    for shard in 0..SHARDS {
        let path = folder.path().join(format!("{shard}.safetensors"));
        tensors = write_shard(&path, &random, tensors);
    }

    let mut options = LoadOptions::default();
    options.memory_limit = Some(MEMORY_LIMIT as u64);
    let loader = Loader::open(Location::from(folder.path()))
        .expect("opens")
        .options(options);
    assert_eq!(loader.checkpoint().tensors().len(), tensors);
    let (before, _) = resident();
    let mut stream = loader.stream().expect("starts");
    let mut kept = Vec::new();
    for tensor in stream.by_ref() {
        let tensor = tensor.expect("loads");
        let index: usize = tensor.name().parse().expect("names are numbers");
        if index.is_multiple_of(KEPT_ONCE_IN) {
            kept.push((index, tensor));
        }
    }
    let report = stream.report();
    assert!(report.tensor_bytes >= 2 << 30, "{}", report.tensor_bytes);
    assert!(report.memory_peak <= MEMORY_LIMIT as u64);
    let kept_bytes: usize = kept
        .iter()
        .map(|(_, tensor)| tensor.bytes().len().max(1) + SHARED_BYTES)
        .sum();
    let allowed = before + kept_bytes + MEMORY_LIMIT + 64 * MIB;
    let (_, peak) = resident();
    assert!(
        kept.len() > 50 && kept_bytes < 1 << 30,
        "{} tensors",
        kept.len()
    );
    assert!(
        peak <= allowed,
        "{} MiB at the peak, {} MiB allowed",
        peak / MIB,
        allowed / MIB
    );

    // Dropping the stream frees everything but the kept tensors.
    drop((stream, loader));
    let (now, _) = resident();
    let allowed = before + kept_bytes + 16 * MIB;
    assert!(
        now <= allowed,
        "{} MiB at the end, {} MiB allowed",
        now / MIB,
        allowed / MIB
    );
    for (index, tensor) in &kept {
        let wanted = content(&random, *index, tensor.bytes().len());
        assert!(tensor.bytes() == wanted, "tensor {index} has changed");
    }
    drop(kept);
    let (now, _) = resident();
    assert!(
        now <= before + 16 * MIB,
        "{} MiB of the load are left",
        (now - before) / MIB
    );
}
