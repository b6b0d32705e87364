//! Tests of opening S3.

use super::*;
use crate::environment::Environment;
use crate::error::ErrorKind;
use crate::options::Location;

fn built(
    url: &str,
    options: &[(&str, &str)],
    variables: &[(&str, &str)],
) -> Result<(AmazonS3Builder, String)> {
    let location = Location::parse(url)?;
    let options = StoreOptions::from_pairs(options.iter().copied())?;
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let environment = Environment::new(variables);
    let url = location.remote().expect("a URL");
    let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
    let (builder, credential_source) = builder(&opening)?;
    let shown = |credential_source| match credential_source {
        CredentialSource::Known(source) => source,
        #[cfg(feature = "aws-config")]
        CredentialSource::Chain(chain) => format!("{chain:?}"),
    };
    Ok((builder, shown(credential_source)))
}

const KEYS: [(&str, &str); 3] = [
    ("access_key_id", "AKIA"),
    ("secret_access_key", "hunter2"),
    ("environment", "false"),
];
const AMBIENT: [(&str, &str); 5] = [
    ("AWS_ACCESS_KEY_ID", "ASIA"),
    ("AWS_SECRET_ACCESS_KEY", "other"),
    ("AWS_SESSION_TOKEN", "token"),
    ("AWS_REGION", "eu-west-1"),
    ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000"),
];

#[test]
fn options_win_over_the_environment() {
    let mut options = KEYS.to_vec();
    options.extend([("region", "eu-west-2"), ("endpoint", "https://minio")]);
    let (builder, credential_source) = built("s3://b/k", &options, &AMBIENT).expect("a builder");
    let value = |key| builder.get_config_value(&key);
    assert_eq!(credential_source, "option access_key_id");
    assert_eq!(
        value(AmazonS3ConfigKey::AccessKeyId).as_deref(),
        Some("AKIA")
    );
    assert_eq!(value(AmazonS3ConfigKey::Token), None);
    assert_eq!(
        value(AmazonS3ConfigKey::Region).as_deref(),
        Some("eu-west-2")
    );
    assert_eq!(endpoint(&builder).as_deref(), Some("https://minio"));
}

#[test]
fn s3_builds_from_environment_alone() {
    let (builder, credential_source) = built("s3://b/k", &[], &AMBIENT).expect("a builder");
    let value = |key| builder.get_config_value(&key);
    assert_eq!(credential_source, "environment");
    assert_eq!(value(AmazonS3ConfigKey::Token).as_deref(), Some("token"));
    assert_eq!(
        value(AmazonS3ConfigKey::Region).as_deref(),
        Some("eu-west-1")
    );
    assert_eq!(endpoint(&builder).as_deref(), Some("http://127.0.0.1:9000"));
}

#[test]
fn configured_endpoints_are_hidden_by_variable_and_options() {
    let sts = ("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9001");
    let ignore = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
    let ignored = [AMBIENT[0], AMBIENT[1], AMBIENT[4], sts, ignore];
    let (builder, _) = built("s3://b/k", &[], &ignored).expect("a builder");
    assert_eq!(endpoint(&builder), None);
    let value = |key| builder.get_config_value(&key);
    assert_eq!(value(AmazonS3ConfigKey::StsEndpoint), None);
    // Options win, also over the variable that `object_store` prefers.
    for option in ["endpoint", "aws_endpoint", "aws_endpoint_url"] {
        for variables in [&AMBIENT[..], &ignored] {
            let (builder, _) =
                built("s3://b/k", &[(option, "https://minio")], variables).expect("a builder");
            assert_eq!(
                endpoint(&builder).as_deref(),
                Some("https://minio"),
                "{option}"
            );
        }
    }
}

#[test]
fn credentials_source_is_named() {
    for (options, wanted) in [
        (vec![("anonymous", "true")], "anonymous"),
        (vec![("aws_skip_signature", "true")], "anonymous"),
        (
            vec![("aws_access_key_id", "a"), ("aws_secret_access_key", "b")],
            "option aws_access_key_id",
        ),
        (
            vec![("aws_container_credentials_relative_uri", "/x")],
            "option aws_container_credentials_relative_uri",
        ),
    ] {
        let (_, credential_source) = built("s3://b/k", &options, &AMBIENT).expect("a builder");
        assert_eq!(credential_source, wanted);
    }
}

#[test]
fn variable_with_endpoint_without_scheme_is_named() {
    for name in endpoint::ENDPOINTS {
        let variables = [(name, "me:hunter2@localhost:9000")];
        let error = built("s3://b/k", &[], &variables).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.message().contains(name), "{error}");
        assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        let given = [("endpoint", "http://minio:9000")];
        built("s3://b/k", &given, &variables).expect("the option counts");
    }
}

#[test]
fn bucket_unsafe_in_host_name_is_rejected() {
    let is_virtual = [("addressing", "virtual"), ("endpoint", "http://minio:9000")];
    let variable = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
    // This machine's own profiles may name an endpoint.
    let ignore = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
    let without_profiles = [AMBIENT[0], AMBIENT[1], AMBIENT[3], ignore];
    for (url, options, variables) in [
        ("s3://evil.example#/k", &is_virtual[..], &AMBIENT[..]),
        ("s3://evil.example?/k", &is_virtual, &AMBIENT),
        ("s3://evil.example:80\\/k", &is_virtual, &AMBIENT),
        (
            "s3://evil.example:80#/k",
            &[],
            &[AMBIENT[0], AMBIENT[1], AMBIENT[4], variable],
        ),
        (
            "s3://evil.example#--usw2-az1--x-s3/k",
            &[],
            &without_profiles,
        ),
        (
            "s3://evil.example#--usw2-az1--x-s3/k",
            &[("express", "true")],
            &AMBIENT,
        ),
    ] {
        let error = built(url, options, variables).err();
        let error = error.unwrap_or_else(|| panic!("{url} {options:?} was taken"));
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{url}: {error}");
    }
    built("s3://b_C.d/k", &is_virtual, &AMBIENT).expect("a name of a host");
    for url in ["s3://<your-bucket>/k", "s3://a b/k", "s3://b\t/k"] {
        let error = built(url, &[("endpoint", "http://minio:9000")], &AMBIENT);
        let error = error.err().unwrap_or_else(|| panic!("{url} was taken"));
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{url}: {error}");
        let message = error.message();
        assert!(
            message.ends_with("cannot be in the name of a bucket"),
            "{message}"
        );
    }
}

#[test]
fn bucket_placement_follows_addressing() {
    let minio = ("endpoint", "http://minio:9000");
    let is_virtual = ("addressing", "virtual");
    for (url, options, endpoint_wanted, virtual_wanted) in [
        ("s3://b/k", vec![], None, "true"),
        ("s3://b.c/k", vec![], None, "false"),
        ("s3://b_C/k", vec![], None, "false"),
        ("s3://b/k", vec![("addressing", "path")], None, "false"),
        ("s3://b/k", vec![minio], Some("http://minio:9000"), "false"),
        (
            "s3://b/k",
            vec![minio, is_virtual],
            Some("http://b.minio:9000"),
            "true",
        ),
        (
            "s3://b/k",
            vec![("region", "cn-north-1")],
            Some("https://b.s3.cn-north-1.amazonaws.com.cn"),
            "true",
        ),
        (
            "s3://b/k",
            vec![("region", "eusc-de-east-1"), ("addressing", "path")],
            Some("https://s3.eusc-de-east-1.amazonaws.eu"),
            "false",
        ),
        (
            "s3://b/k",
            vec![("region", "us-isob-east-1")],
            Some("https://b.s3.us-isob-east-1.sc2s.sgov.gov"),
            "true",
        ),
        (
            "s3://b/k",
            vec![("region", "us-iso-east-1")],
            Some("https://b.s3.us-iso-east-1.c2s.ic.gov"),
            "true",
        ),
        ("s3://b/k", vec![("region", "us-gov-west-1")], None, "true"),
    ] {
        let mut all = KEYS.to_vec();
        all.extend(&options);
        let (builder, _) = built(url, &all, &[]).expect(url);
        assert_eq!(
            endpoint(&builder).as_deref(),
            endpoint_wanted,
            "{url} {options:?}"
        );
        let found = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
        assert_eq!(found.as_deref(), Some(virtual_wanted), "{url} {options:?}");
    }
}

#[test]
fn access_points_have_hosts_and_regions_of_their_own() {
    let url = "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/ap/k";
    let fips = ("AWS_USE_FIPS_ENDPOINT", "true");
    let dual_stack = ("AWS_USE_DUALSTACK_ENDPOINT", "true");
    // This machine's own profiles may name an endpoint.
    let ignore = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
    for (options, variables, wanted) in [
        (
            vec![("region", "us-east-1")],
            vec![ignore],
            "https://ap-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
        ),
        (
            vec![],
            vec![ignore, fips, dual_stack],
            "https://ap-123456789012.s3-accesspoint-fips.dualstack.eu-west-1.amazonaws.com",
        ),
        (
            vec![("endpoint", "http://minio.example:9000")],
            vec![ignore],
            "http://ap-123456789012.minio.example:9000",
        ),
    ] {
        let mut all: Vec<_> = KEYS
            .into_iter()
            .filter(|(key, _)| *key != "environment")
            .collect();
        all.extend(options);
        let (builder, _) = built(url, &all, &variables).expect("a builder");
        assert_eq!(endpoint(&builder).as_deref(), Some(wanted));
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        assert_eq!(region.as_deref(), Some("eu-west-1"));
    }
    let china = "s3://arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/ap/k";
    let (builder, _) = built(china, &KEYS, &[]).expect("a builder");
    let host = endpoint(&builder).expect("an endpoint");
    assert!(host.ends_with(".cn-north-1.amazonaws.com.cn"), "{host}");
    let by_path = [KEYS[0], KEYS[1], KEYS[2], ("addressing", "path")];
    let error = built(url, &by_path, &[]).expect_err("no such form");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    let at_address = [
        KEYS[0],
        KEYS[1],
        KEYS[2],
        ("endpoint", "http://127.0.0.1:9000"),
    ];
    let error = built(url, &at_address, &[]).expect_err("no host name");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    let (builder, _) = built("s3://ap-o0o0o0o0-s3alias/k", &KEYS, &[]).expect("a bucket");
    let found = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
    assert_eq!(found.as_deref(), Some("true"));
}

#[test]
fn bucket_is_added_to_host_names_without_it() {
    let addressing = ("addressing", "virtual");
    let setting = ("aws_virtual_hosted_style_request", "true");
    for (way, given, wanted) in [
        (
            addressing,
            "https://s3.example.com",
            "https://b.s3.example.com",
        ),
        (
            addressing,
            "https://b.s3.example.com:81",
            "https://b.s3.example.com:81",
        ),
        (
            addressing,
            "https://b.s3-eu.example.com/",
            "https://b.s3-eu.example.com/",
        ),
        (
            addressing,
            "https://b.oss-cn-x.aliyuncs.com",
            "https://b.oss-cn-x.aliyuncs.com",
        ),
        (
            addressing,
            "https://b.nyc3.digitaloceanspaces.com",
            "https://b.nyc3.digitaloceanspaces.com",
        ),
        // The server is called like the bucket.
        (
            addressing,
            "https://b.example.com",
            "https://b.b.example.com",
        ),
        (
            addressing,
            "https://b.digitaloceanspaces.com",
            "https://b.b.digitaloceanspaces.com",
        ),
        // This setting requires that the endpoint contains the bucket.
        (setting, "https://b.example.com", "https://b.example.com"),
    ] {
        let mut all = KEYS.to_vec();
        all.extend([way, ("endpoint", given)]);
        let (builder, _) = built("s3://b/k", &all, &[]).expect(given);
        assert_eq!(endpoint(&builder).as_deref(), Some(wanted), "{way:?}");
    }
}

#[test]
fn variables_select_variants_of_endpoints() {
    let fips = ("AWS_USE_FIPS_ENDPOINT", "true");
    let dual_stack = ("AWS_USE_DUALSTACK_ENDPOINT", "True");
    for (variables, region, wanted) in [
        (
            vec![fips],
            "us-east-1",
            Some("https://b.s3-fips.us-east-1.amazonaws.com"),
        ),
        (
            vec![dual_stack],
            "cn-north-1",
            Some("https://b.s3.dualstack.cn-north-1.amazonaws.com.cn"),
        ),
        (
            vec![fips, dual_stack],
            "us-gov-west-1",
            Some("https://b.s3-fips.dualstack.us-gov-west-1.amazonaws.com"),
        ),
        (vec![("AWS_USE_FIPS_ENDPOINT", "false")], "us-east-1", None),
        (
            vec![fips, AMBIENT[4]],
            "us-east-1",
            Some("http://127.0.0.1:9000"),
        ),
    ] {
        let mut all = KEYS.to_vec();
        all.push(("region", region));
        let (builder, _) = built("s3://b/k", &all, &variables).expect(region);
        assert_eq!(endpoint(&builder).as_deref(), wanted, "{variables:?}");
    }
    let error = built("s3://b--use1-az4--x-s3/k", &KEYS, &[fips]).expect_err("no variant");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("AWS_USE_FIPS_ENDPOINT"))
    );
}

#[test]
fn express_bucket_is_recognised_by_name() {
    let (builder, _) = built("s3://b--use1-az4--x-s3/k", &KEYS, &[]).expect("a builder");
    let express = builder.get_config_value(&AmazonS3ConfigKey::S3Express);
    assert_eq!(express.as_deref(), Some("true"));
}

#[test]
fn incomplete_or_missing_credentials_fail() {
    for (options, kind) in [
        (vec![("access_key_id", "a")], ErrorKind::InvalidRequest),
        (vec![("session_token", "a")], ErrorKind::InvalidRequest),
        (vec![("environment", "false")], ErrorKind::PermissionDenied),
        (vec![("aws_no_such_key", "a")], ErrorKind::InvalidRequest),
    ] {
        let error = built("s3://b/k", &options, &[]).expect_err("an error");
        assert_eq!(error.kind(), kind, "{options:?}");
    }
}

#[test]
fn profiles_win_over_keys_in_the_environment() {
    let credential_source = built("s3://b/k", &[("profile", "dev")], &AMBIENT)
        .map(|(_, credential_source)| credential_source);
    if cfg!(feature = "aws-config") {
        assert!(credential_source.expect("a chain").contains("dev"));
    } else {
        assert_eq!(
            credential_source.expect_err("an error").kind(),
            ErrorKind::Unsupported
        );
    }
}
