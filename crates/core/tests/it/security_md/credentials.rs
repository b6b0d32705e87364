//! Promises of SECURITY.md: credentials: which may go to which host.

use super::{Promise, Section};

pub(super) const CREDENTIALS: Section = Section {
    heading: "Credentials",
    introduction: "A location never adds a host for credentials of the environment. The \
                   environment's own configuration, the options of the store and the service \
                   that the credentials belong to decide where they go.",
    promises: &[
        Promise {
            says: "AWS credentials of the environment go to `endpoint` or the endpoint that a \
                   variable names (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT`), \
                   and to no host that a bucket names. A bucket whose name would end the host's \
                   name is refused.",
            tests: &[
                "crates/core/tests/objects/hosts.rs::aws_credentials_go_to_configured_endpoint",
                "crates/core/tests/objects/hosts.rs::aws_credentials_skip_hosts_named_by_bucket",
                "crates/core/tests/objects/credentials.rs::profile_keys_go_to_profile_endpoint",
                "crates/core/tests/objects/credentials.rs::configured_endpoints_can_be_ignored",
                "crates/store/src/protocols/s3/tests.rs::bucket_unsafe_in_host_name_is_rejected",
            ],
        },
        Promise {
            says: "Azure credentials of the environment go to hosts of Azure and Fabric, to \
                   `endpoint` and to the endpoint of the environment, and to no other host that \
                   the URL names. A host that is neither an account nor an Azure host is \
                   refused.",
            tests: &[
                "crates/core/tests/objects/hosts.rs::azure_credentials_skip_hosts_named_only_by_url",
                "crates/core/tests/objects/hosts.rs::azure_credentials_go_to_configured_endpoint",
                "crates/core/tests/objects/hosts.rs::azure_connection_string_key_goes_to_its_endpoint",
                "crates/store/src/protocols/azure.rs::host_named_only_by_url_gets_no_environment_credentials",
                "crates/store/src/protocols/azure.rs::identity_option_does_not_trust_foreign_host",
                "crates/store/src/protocols/azure.rs::text_neither_account_nor_host_is_rejected",
            ],
        },
        Promise {
            says: "Google credentials of the environment go to the endpoint, whatever the bucket \
                   is called.",
            tests: &[
                "crates/core/tests/objects/hosts.rs::google_credentials_go_to_endpoint_for_any_bucket",
                "crates/core/tests/objects/hosts.rs::google_key_file_requests_go_to_its_base_url",
            ],
        },
        Promise {
            says: "Tokens of an external account of Google (`external_account`) go to the token \
                   services of Google over TLS, those of a region included, or to a service on \
                   this machine, whatever its file names. A program that the file names runs \
                   only if `GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES=1`, and its texts are not \
                   shown.",
            tests: &[
                "crates/store/src/protocols/gcs/external_account.rs::tokens_go_to_hosts_of_google_only",
                "crates/store/src/protocols/gcs/external_account.rs::tokens_go_to_their_own_service_only",
                "crates/store/src/protocols/gcs/subject_token.rs::unusable_sources_are_explained",
                "crates/core/tests/objects/external_accounts.rs::unusable_accounts_are_explained_and_nothing_is_sent",
                "crates/core/tests/objects/external_accounts.rs::subject_tokens_come_from_files_urls_and_programs",
            ],
        },
        Promise {
            says: "A web server gets no credentials of the environment.",
            tests: &[
                "crates/core/tests/objects/hosts.rs::web_servers_get_no_environment_credentials",
            ],
        },
        Promise {
            says: "Credentials for an OCI registry go to the registry, and to the token service \
                   that it names, which must not be without TLS or in a narrower network if the \
                   registry is not. They do not go to hosts that the registry redirects to.",
            tests: &[
                "crates/core/tests/objects/registry_access.rs::password_comes_from_file_of_other_tools",
                "crates/core/tests/objects/registry_access.rs::token_service_gets_password_and_no_other_header",
                "crates/core/tests/objects/registry_access.rs::redirect_gets_no_credentials",
                "crates/core/tests/objects/registry_access.rs::challenge_of_redirect_target_is_not_answered",
                "crates/core/tests/objects/registry_access.rs::token_service_of_another_network_is_refused",
                "crates/store/src/protocols/oci/challenge.rs::token_service_is_as_public_as_the_registry",
            ],
        },
        Promise {
            says: "The password of a proxy goes to the proxy only.",
            tests: &["crates/core/tests/objects/hosts.rs::proxy_password_goes_to_proxy_only"],
        },
        Promise {
            says: "`header.*` options are sent to the store, and not to services that give \
                   credentials.",
            tests: &[
                "crates/core/tests/objects/hosts.rs::option_headers_go_to_store_not_to_credential_services",
            ],
        },
        Promise {
            says: "A redirect to another origin carries the wanted range and conditions, and no \
                   credentials, no option headers and no `Referer`. They are not added again if \
                   that origin redirects further.",
            tests: &[
                "crates/core/tests/objects/redirects.rs::cross_origin_redirect_forwards_only_range",
                "crates/core/tests/objects/redirects.rs::cross_origin_redirect_sends_exact_headers",
                "crates/core/tests/objects/redirects.rs::same_origin_redirect_keeps_headers_without_referer",
                "crates/core/tests/objects/redirects.rs::dropped_headers_are_not_restored_by_redirect_back",
            ],
        },
        Promise {
            says: "A redirect is refused from https to http, and into a narrower network than \
                   the server's own: private, loopback, then link-local and metadata addresses. \
                   Host names must not resolve to a narrower address either.",
            tests: &[
                "crates/core/tests/objects/redirects.rs::redirects_from_https_to_http_are_rejected",
                "crates/core/tests/objects/redirects.rs::redirects_into_private_networks_are_rejected",
                "crates/store/src/http/redirects.rs::redirect_to_narrower_reach_is_rejected",
                "crates/store/src/http/addresses.rs::limited_names_resolve_to_no_address_of_a_narrower_reach",
                "crates/store/src/http/addresses.rs::addresses_have_the_reach_of_their_network",
            ],
        },
        Promise {
            says: "A redirect loop is an error, without a retry.",
            tests: &["crates/core/tests/objects/redirects.rs::redirect_loop_fails_without_retry"],
        },
        Promise {
            says: "Keys given as options are used alone: no key of the environment is added to \
                   them.",
            tests: &[
                "crates/core/tests/objects/credentials.rs::environment_keys_are_used_unless_options_set",
                "crates/store/src/environment.rs::explicit_credentials_exclude_ambient_ones",
                "crates/store/src/protocols/s3/tests.rs::options_win_over_the_environment",
                "crates/store/src/protocols/azure.rs::explicit_credentials_are_not_mixed_with_those_of_the_environment",
            ],
        },
        Promise {
            says: "With `anonymous=true` no credentials of the environment are sent to S3 or to \
                   a hub.",
            tests: &[
                "crates/core/tests/objects/credentials.rs::anonymous_requests_carry_no_credentials",
                "crates/store/src/protocols/hub/settings.rs::token_is_option_then_variable_then_file",
            ],
        },
        Promise {
            says: "Without credentials, and with a profile that does not exist, no request is \
                   sent to S3.",
            tests: &[
                "crates/core/tests/objects/credentials.rs::missing_credentials_are_rejected_without_request",
                "crates/core/tests/objects/credentials.rs::missing_profile_is_rejected_without_request",
            ],
        },
        Promise {
            says: "The token of a hub goes to the hub, including redirects within it, and not to \
                   the hosts that it redirects to.",
            tests: &[
                "crates/core/tests/objects/hubs.rs::token_goes_to_hub_only",
                "crates/core/tests/objects/hosts.rs::hub_token_goes_to_endpoint_and_not_to_redirects",
                "tests/test_hub.py::test_tokens_are_found_where_the_package_looks",
            ],
        },
        Promise {
            says: "The hub's content store gets its own token, and hosts of presigned URLs get \
                   none; neither gets a header of an option. No such host may be in a narrower \
                   network than the hub, or lack TLS if the hub has it.",
            tests: &[
                "crates/core/tests/objects/xet.rs::each_token_goes_to_its_host_only",
                "crates/core/tests/objects/xet.rs::hostile_reconstruction_is_refused",
            ],
        },
        Promise {
            says: "With `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`, no request is sent to a hub.",
            tests: &["tests/test_hub.py::test_offline_mode_sends_nothing"],
        },
        Promise {
            says: "The user, password and query of a URL go with requests for it. The query goes \
                   with requests for files below it as well.",
            tests: &[
                "crates/store/src/tests.rs::signed_url_is_sent_verbatim_and_redacted",
                "crates/core/tests/objects/loads.rs::signed_urls_keep_their_query",
            ],
        },
        Promise {
            says: "No cloud credentials of the environment are used for a web server. Options \
                   named after one cloud are used for that cloud only.",
            tests: &[
                "crates/store/src/environment.rs::explicit_credentials_exclude_ambient_ones",
                "crates/base/src/options/store_options.rs::keys_of_object_store_go_to_their_protocol_only",
            ],
        },
        Promise {
            says: "Requests for credentials to the metadata service of a machine, and to token \
                   services on this machine, do not go through a proxy.",
            tests: &[
                "crates/store/src/http/client.rs::metadata_requests_bypass_proxy",
                "crates/store/src/http/proxy.rs::variables_name_no_proxy_of_metadata_services",
                "crates/core/tests/objects/hosts.rs::metadata_requests_bypass_proxy_of_variables",
                "crates/core/tests/objects/external_accounts.rs::services_without_tls_are_not_asked_through_proxy",
            ],
        },
        Promise {
            says: "A request whose proxy cannot be used (SOCKS, a malformed URL) fails. It is \
                   not sent without it.",
            tests: &[
                "crates/core/tests/objects/proxies.rs::unusable_proxies_are_named_and_nothing_is_sent",
            ],
        },
        Promise {
            says: "Variables name proxies and exempt hosts as they do for curl, for every \
                   client.",
            tests: &[
                "crates/core/tests/objects/proxies.rs::requests_go_through_proxy_as_those_of_curl",
                "crates/core/tests/objects/proxies.rs::all_clients_follow_variables",
            ],
        },
        Promise {
            says: "A server whose certificate no trusted authority has signed is an error, \
                   unless `ca_file` or `tls_verify=false` accepts it.",
            tests: &[
                "crates/core/tests/objects/network.rs::untrusted_certificate_is_rejected",
                "crates/core/tests/objects/network.rs::untrusted_certificate_is_rejected_for_s3",
            ],
        },
    ],
};
