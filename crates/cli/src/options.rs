//! Conversion of arguments to the types of the core: locations, selections, options. The last place
//! that knows clap's types.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tload::copy::CopyOptions;
use tload::internal::Trial;
use tload::verify::{ManifestTarget, VerifyOptions};
use tload::{
    Device, DeviceMap, Error, ErrorKind, Key, LoadOptions, Location, OpenOptions, Protocol, Result,
    Selection, StoreOptions,
};
use tload_config::Config;
use tload_doctor::Arguments;
use tload_serve::{ServeOptions, TlsFiles};
use tload_synth::Preset;

use crate::args::{
    BenchArgs, CacheArg, CopyArgs, DeviceArg, KeyArgs, ModeArg, OpenArgs, PresetArg, SelectArgs,
    ServeArgs, SortArg, StoreArgs, VerifyArgs,
};
use crate::bench::{CacheState, Configuration, Mode};
use crate::command::Order;
use crate::configuration;

/// Depths of `--sweep`, from one read at a time to more than makes a difference on disks.
const SWEEP_DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Extents of `--sweep`, from one that is a single request to the device to one that the device
/// splits.
const SWEEP_EXTENTS: [u64; 3] = [1 << 20, 4 << 20, 16 << 20];

/// Options whose defaults a load tunes by itself.
const TUNED: [&str; 3] = ["depth", "extent_bytes", "lanes"];

/// Returns the variants of loads that `TLOAD_TRY` selects.
pub(crate) fn trial() -> Result<Trial> {
    let text = std::env::var_os(tload::internal::TRIAL_VARIABLE).unwrap_or_default();
    text.to_string_lossy().parse()
}

/// Returns the names of the variables in the environment.
pub(crate) fn variables() -> Vec<String> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// Parses a path or URL as the user wrote it. A path may be any bytes; a URL is text.
pub(crate) fn location(text: &OsStr) -> Result<Location> {
    match text.to_str() {
        Some(text) => Location::parse(text),
        None => Ok(Location::from_path(PathBuf::from(text))),
    }
}

/// Returns a location as the user wrote it, or the path of one that the user did not write.
pub(crate) fn written(location: &Location, argument: Option<&OsStr>) -> OsString {
    let path = || location.as_path().map(Into::into);
    argument.map(Into::into).or_else(path).unwrap_or_default()
}

/// Collects the options of object stores for what is at `location`, or for all: of the
/// configuration file, of variables and of arguments.
pub(crate) fn store(args: &StoreArgs, location: Option<&Location>) -> Result<StoreOptions> {
    let config = configuration::current()?;
    store_over(&config, args, location)
}

/// Like [`store`], with this configuration. Blank options are skipped: the variable may end with
/// one.
pub(crate) fn store_over(
    config: &Config,
    args: &StoreArgs,
    location: Option<&Location>,
) -> Result<StoreOptions> {
    let mut options = config.store_options(location.map_or(&[], std::slice::from_ref))?;
    let variable = |error: Error| error.with_context("environment variable TLOAD_STORE");
    for option in args.environment.iter().filter(|option| !is_blank(option)) {
        let (key, value) = pair(option).map_err(variable)?;
        options.set(key, value).map_err(variable)?;
    }
    for option in args.store.iter().filter(|option| !is_blank(option)) {
        let (key, value) = pair(option)?;
        options.set(key, value)?;
    }
    for (key, value) in args.of_cache() {
        let value = value.to_str().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidRequest,
                format!("the value of {key} is not UTF-8"),
            )
        })?;
        options.set(key, value)?;
    }
    Ok(options)
}

/// Sets `timeout` as the time limit for opening unless the user set one.
pub(crate) fn within(timeout: Option<Duration>, mut store: StoreOptions) -> Result<StoreOptions> {
    if let (Some(timeout), None) = (timeout, store.get("open_timeout")) {
        store.set("open_timeout", timeout.as_secs_f64().to_string())?;
    }
    Ok(store)
}

/// Returns the arguments that `doctor` judges.
pub(crate) fn arguments(args: &OpenArgs) -> Arguments {
    let own = args.store.of_cache();
    Arguments {
        store: args.store.store.clone(),
        environment: args.store.environment.clone(),
        own: own.map(|(key, value)| (key, value.clone())).collect(),
        follow_symlinks: args.follow_symlinks,
    }
}

/// Returns the options for opening a checkpoint, with `store` for object stores.
///
/// # Errors
///
/// Those of [`key`].
pub(crate) fn opening(store: StoreOptions, args: &OpenArgs) -> Result<OpenOptions> {
    let mut options = OpenOptions::from(store);
    options.follow_symlinks = args.follow_symlinks;
    options.key = key(&args.key)?;
    Ok(options)
}

/// Returns the key of sealed checkpoints, if the user gave one.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for several.
pub(crate) fn key(args: &KeyArgs) -> Result<Option<Key>> {
    // The key itself is no argument, which other users of the machine could read.
    let text = std::env::var_os("TLOAD_KEY").filter(|text| !text.is_empty());
    let text = text.map(|text| Key::from_text(text.to_string_lossy()));
    let file = args.key_file.as_ref().map(Key::from_file);
    let command = args.key_command.as_ref().map(Key::from_command);
    let mut given = [text, file, command].into_iter().flatten();
    match (given.next(), given.next()) {
        (key, None) => Ok(key),
        (_, Some(_)) => Err(Error::invalid_request(
            "several keys were given; one of TLOAD_KEY, --key-file (TLOAD_KEY_FILE) and --key-command (TLOAD_KEY_COMMAND) can be",
        )),
    }
}

/// Returns whether the key is that of a variable.
pub(crate) fn is_key_set(args: &KeyArgs) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty());
    let (file, command) = (set("TLOAD_KEY_FILE"), set("TLOAD_KEY_COMMAND"));
    set("TLOAD_KEY").is_some()
        || file.is_some_and(|it| args.key_file.as_ref().is_some_and(|file| *file == *it))
        || command.is_some_and(|it| args.key_command.as_ref().is_some_and(|text| **text == *it))
}

fn pair(option: &OsStr) -> Result<(String, String)> {
    let text = option.to_str().ok_or_else(|| {
        // Without the text, which may be a secret.
        Error::new(
            ErrorKind::InvalidRequest,
            "an option of --store is not UTF-8",
        )
    })?;
    StoreOptions::parse(text)
}

fn is_blank(option: &OsString) -> bool {
    option.to_string_lossy().trim().is_empty()
}

/// Returns the options of a copy.
pub(crate) fn copy(args: &CopyArgs) -> CopyOptions {
    let mut options = CopyOptions::default();
    options.include.clone_from(&args.include);
    options.exclude.clone_from(&args.exclude);
    options.hidden = args.hidden;
    options.force = args.force;
    options.skip_unusable = args.skip_unusable;
    options.dry_run = args.dry_run;
    options.depth = args.depth.unwrap_or(options.depth);
    options.range_bytes = args.extent.unwrap_or(options.range_bytes);
    options
}

/// Returns the place in a store that a copy goes to; `None` for a directory. Other URLs are refused
/// by the copy.
pub(crate) fn upload_target(target: &Path) -> Result<Option<Location>> {
    let target = location(target.as_os_str())?;
    let is_store = matches!(
        target.protocol(),
        Some(Protocol::S3 | Protocol::Gcs | Protocol::Azure)
    );
    Ok(is_store.then_some(target))
}

/// Returns the options of the store that a copy writes to.
pub(crate) fn target_store(
    args: &CopyArgs,
    source: &Location,
    target: &Location,
) -> Result<StoreOptions> {
    let mut of_target = args.store.clone();
    if !args.target_store.is_empty() {
        of_target.store.clone_from(&args.target_store);
        of_target.environment.clear();
    } else if source
        .protocol()
        .is_some_and(|it| Some(it) != target.protocol())
    {
        of_target.store.clear();
        of_target.environment.clear();
    }
    store(&of_target, Some(target))
}

/// Returns the options of a verification.
pub(crate) fn verify(args: &VerifyArgs) -> Result<VerifyOptions> {
    let mut options = VerifyOptions::default();
    options.manifest = args.manifest.as_deref().map(location).transpose()?;
    options.write = args.write.as_ref().map(|path| match path {
        Some(path) => ManifestTarget::Path(path.clone()),
        None => ManifestTarget::Beside,
    });
    options.force = args.force;
    Ok(options)
}

/// Returns the union of all filters; without filters, everything.
pub(crate) fn selection(args: &SelectArgs) -> Result<Selection> {
    let mut selections = Vec::new();
    if !args.names.is_empty() {
        selections.push(Selection::names(args.names.iter().cloned()));
    }
    for glob in &args.globs {
        selections.push(Selection::glob(glob)?);
    }
    for regex in &args.regexes {
        selections.push(Selection::regex(regex)?);
    }
    // Not a fold from `all()`, whose union with anything is everything.
    Ok(selections
        .into_iter()
        .reduce(Selection::union)
        .unwrap_or_default())
}

/// Parses the device for the tensors. clap does not do this, because a device that this build lacks
/// is not a usage error.
pub(crate) fn device(args: &DeviceArg) -> Result<Device> {
    args.device.parse()
}

/// Parses devices by name and glob, in order.
pub(crate) fn device_map(rules: &[String]) -> Result<DeviceMap> {
    fn rule(text: &str) -> Result<(&str, Device)> {
        // From the end: a name may contain `=`, a device does not.
        let (key, device) = text.rsplit_once('=').ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidRequest,
                format!("--device-map {text:?} is not NAME=DEVICE or GLOB=DEVICE"),
            )
        })?;
        Ok((key, device.trim().parse()?))
    }
    let rules = rules.iter().map(|text| rule(text));
    DeviceMap::new(rules.collect::<Result<Vec<_>>>()?)
}

/// Returns every combination of a benchmark's lists, the last list varying fastest. With `--sweep`,
/// the defaults of depth, extent and lanes come before their combinations.
pub(crate) fn configurations(args: &BenchArgs, device: Device) -> Result<Vec<Configuration>> {
    let (mut swept, fixed): (Vec<_>, Vec<_>) = args
        .sweep
        .0
        .iter()
        .cloned()
        .partition(|(name, _)| TUNED.contains(name));
    for (name, values) in &mut swept {
        if args.with_defaults && values.is_empty() {
            *values = sweep_values(name);
        }
    }
    let mut configurations = Vec::new();
    let mut defaults = LoadOptions::default();
    defaults.trial = trial()?;
    for options in combinations(&defaults, &fixed)? {
        if args.with_defaults {
            configurations.push(options.clone());
        }
        configurations.extend(combinations(&options, &swept)?);
    }
    Ok(configurations
        .into_iter()
        .map(|options| Configuration { device, options })
        .collect())
}

/// Returns `options` with every combination of values. An empty list leaves an option as it is.
fn combinations(options: &LoadOptions, lists: &[(&str, Vec<String>)]) -> Result<Vec<LoadOptions>> {
    let mut combinations = vec![options.clone()];
    for (name, values) in lists.iter().filter(|(_, values)| !values.is_empty()) {
        let mut longer = Vec::with_capacity(combinations.len() * values.len());
        for combination in &combinations {
            for value in values {
                let mut combination = combination.clone();
                combination.set(name, value)?;
                longer.push(combination);
            }
        }
        combinations = longer;
    }
    Ok(combinations)
}

fn sweep_values(name: &str) -> Vec<String> {
    match name {
        "depth" => SWEEP_DEPTHS.iter().map(ToString::to_string).collect(),
        "extent_bytes" => SWEEP_EXTENTS.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    }
}

/// Returns the modes without duplicates.
pub(crate) fn modes(args: &BenchArgs) -> Vec<Mode> {
    unique(args.mode.iter().map(|mode| match mode {
        ModeArg::Stream => Mode::Stream,
        ModeArg::Reload => Mode::Reload,
        ModeArg::Keep => Mode::Keep,
    }))
}

/// Returns the states of the page cache without duplicates.
pub(crate) fn cache_states(args: &BenchArgs) -> Vec<CacheState> {
    unique(args.cache_state.iter().flat_map(|state| match state {
        CacheArg::Cold => vec![CacheState::Cold],
        CacheArg::Warm => vec![CacheState::Warm],
        CacheArg::Both => vec![CacheState::Cold, CacheState::Warm],
    }))
}

fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut unique = Vec::new();
    for item in items {
        if !unique.contains(&item) {
            unique.push(item);
        }
    }
    unique
}

pub(crate) fn order(arg: SortArg) -> Order {
    match arg {
        SortArg::Offset => Order::Offset,
        SortArg::Name => Order::Name,
        SortArg::Size => Order::Size,
        SortArg::Dtype => Order::Dtype,
    }
}

pub(crate) fn preset(arg: PresetArg) -> Preset {
    match arg {
        PresetArg::Llama => Preset::Llama,
        PresetArg::Moe => Preset::Moe,
        PresetArg::Tiny => Preset::Tiny,
    }
}

/// Converts the options of a server.
pub(crate) fn serve(args: &ServeArgs) -> Result<ServeOptions> {
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    let location = args.location.as_deref().map(location).transpose()?;
    Ok(ServeOptions {
        store: store(&args.store, location.as_ref())?,
        location,
        listen: args.listen.clone(),
        token_file: args.token_file.clone(),
        tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
        max_connections: args.max_connections.try_into().unwrap_or(usize::MAX),
        client_timeout: args.client_timeout,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn bench(arguments: &[&str]) -> BenchArgs {
        let arguments = ["tload", "bench"].iter().chain(arguments);
        let args = Args::try_parse_from(arguments).expect("valid arguments");
        let Command::Bench(args) = args.command else {
            panic!("parsed {args:?}")
        };
        args
    }

    #[test]
    fn lists_become_every_combination() {
        let args = bench(&[
            "--engine",
            "uring,pread",
            "--depth",
            "4,8",
            "--extent",
            "1MiB,4MiB",
        ]);
        let configurations = configurations(&args, Device::Cpu).expect("valid values");
        assert_eq!(configurations.len(), 8);
        let first: Vec<_> = configurations[..3]
            .iter()
            .map(|it| &it.options)
            .map(|it| (it.engine.to_string(), it.depth, it.extent_bytes, it.lanes))
            .collect();
        assert_eq!(
            first,
            [
                ("uring".to_owned(), Some(4), Some(1 << 20), None),
                ("uring".to_owned(), Some(4), Some(4 << 20), None),
                ("uring".to_owned(), Some(8), Some(1 << 20), None),
            ]
        );
    }

    #[test]
    fn sweep_consists_of_defaults_and_grid() {
        let settings = |arguments: &[&str]| -> Vec<_> {
            configurations(&bench(arguments), Device::Cpu)
                .expect("valid values")
                .iter()
                .map(|it| &it.options)
                .map(|it| (it.lanes, it.depth, it.extent_bytes))
                .collect()
        };
        let all = settings(&["--sweep"]);
        assert_eq!(all.len(), 1 + 7 * 3);
        assert_eq!(all[0], (None, None, None));
        assert_eq!(all[1], (None, Some(1), Some(1 << 20)));
        assert_eq!(all[21], (None, Some(64), Some(16 << 20)));
        assert_eq!(
            settings(&[
                "--sweep", "--depth", "3", "--extent", "2MiB", "--lanes", "2,4"
            ]),
            [
                (None, None, None),
                (Some(2), Some(3), Some(2 << 20)),
                (Some(4), Some(3), Some(2 << 20)),
            ]
        );
        let engines = bench(&["--sweep", "--engine", "uring,pread"]);
        let engines = configurations(&engines, Device::Cpu).expect("valid values");
        assert_eq!(engines.len(), 2 * 22);
        let limited = bench(&["--memory-limit", "1GiB", "--hedge", "false"]);
        let limited = configurations(&limited, Device::Cpu).expect("valid values");
        let options = &limited[0].options;
        assert_eq!(
            (options.memory_limit, options.hedge),
            (Some(1 << 30), Some(false))
        );
        assert_eq!(settings(&[]), [(None, None, None)]);
    }

    #[test]
    fn rules_for_devices_end_in_a_device() {
        let rules = ["a=b.*=cuda:1", "*= cpu"].map(str::to_owned);
        let devices = format!("{:?}", device_map(&rules).expect("rules"));
        let (first, second) = (devices.find("Cuda(1)"), devices.find("Cpu"));
        assert!(devices.contains("\"a=b.*\""), "{devices}");
        assert!(first.is_some() && first < second, "{devices}");
        for (rule, kind) in [
            ("*", ErrorKind::InvalidRequest),
            ("*=tpu", ErrorKind::InvalidRequest),
            ("[=cpu", ErrorKind::InvalidRequest),
            ("*=mps", ErrorKind::Unsupported),
        ] {
            let error = device_map(&[rule.to_owned()]).expect_err(rule);
            assert_eq!(error.kind(), kind, "{rule}");
        }
    }

    #[test]
    fn repeated_modes_and_states_count_once() {
        let args = bench(&["--mode", "keep,stream,keep", "--cache-state", "warm,both"]);
        assert_eq!(modes(&args), [Mode::Keep, Mode::Stream]);
        assert_eq!(cache_states(&args), [CacheState::Warm, CacheState::Cold]);
    }
}
