api_server   = "10.0.0.1:6443"
token        = "abcdef.0123456789abcdef"
ca_cert_hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
labels       = { "example.com/pool" = "h100" }
