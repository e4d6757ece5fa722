// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"slices"
	"strings"
)

// secret says whether a name of a key, a variable, a flag or a header is one that secrets have.
func secret(name string) bool {
	words := split(name)
	if len(words) == 0 {
		return false
	}
	flat, last := strings.Join(words, ""), words[len(words)-1]
	if slices.Contains(describing(), last) && flat != "userpass" {
		return false
	}
	if last == "id" && len(words) > 1 && (strings.HasSuffix(words[len(words)-2], "key") || slices.Contains(words, "provider")) {
		return false // a key's ID says which key, and is no secret
	}
	if strings.Contains(flat, "cacerthash") || slices.Contains(words, "public") || strings.HasPrefix(flat, "pub") && strings.HasSuffix(flat, "key") {
		return false
	}
	for _, part := range []string{
		"passw", "passphrase", "passcode", "token", "secret", "credential", "cookie", "bearer", "apikey", "accesskey", "privatekey", "signature",
		"authoriz", "authentic", "connectionstring", "webhookurl", "kubeenv",
	} {
		if strings.Contains(flat, part) {
			return true
		}
	}
	for _, word := range words {
		switch word {
		case "pwd", "pass", "pat", "auth", "auths", "sig", "session", "phpsessid", "jwt", "otp", "psk", "sas", "cred", "creds", "dsn", "community":
			return true
		case "header", "headers": // OTEL_EXPORTER_OTLP_HEADERS; a kernel has headers too
			if len(words) > 1 && words[0] != "kernel" && words[0] != "linux" {
				return true
			}
		}
	}
	if i := slices.Index(words, "key"); i >= 0 && i == len(words)-2 && slices.Contains([]string{"data", "pem", "base64", "b64", "material", "value", "content"}, last) {
		return true
	}
	switch {
	case strings.HasSuffix(last, "pass"):
		return !strings.HasSuffix(last, "bypass") && !strings.HasSuffix(last, "compass")
	case strings.HasSuffix(last, "pwd"), strings.HasSuffix(last, "psk"), last == "private", last == "keys" && len(words) > 1:
		return true
	case last == "key":
		return !slices.Contains([]string{"host", "primary", "foreign", "sort", "partition", "topology", "label", "taint", "gpg"}, words[max(0, len(words)-2)])
	case strings.HasSuffix(last, "key"):
		return !slices.Contains([]string{"gpgkey", "newkey", "pubkey", "hotkey", "hostkey", "sortkey", "monkey", "turnkey", "hashkey"}, last)
	}
	return false
}

// describing are last words of names that say something about a secret, and are none: passwordFile,
// tokenTTL, auth_type.
func describing() []string {
	return []string{
		"file", "files", "path", "paths", "dir", "dirs", "directory", "ttl", "timeout", "expiry", "expires", "expiration", "duration", "seconds",
		"period", "interval", "type", "mode", "modes", "policy", "provider", "providers", "enable", "enabled", "disabled", "required", "version", "size",
		"count", "limit", "fingerprint", "algorithm", "alg", "hashalgo", "method", "name", "names", "model", "server", "realm", "class", "plugin",
		"rotation", "username", "issuer", "audience", "audiences", "level", "stdin", "endpoint", "attributes", "config", "kubeconfig", "configs",
	}
}

// container says whether all below a name is secret, whatever it is called: HTTP headers, a
// registry's login.
func container(name string) bool {
	words := split(name)
	if len(words) == 0 {
		return false
	}
	switch words[len(words)-1] {
	case "header", "headers", "auth", "credential", "credentials", "secrets", "tokens":
		return true
	}
	return false
}

// descends says whether a name is a section's, with settings of their own below it: kubelet's
// "authentication".
func descends(name string) bool {
	flat := strings.Join(split(name), "")
	return strings.HasPrefix(flat, "authentic") || strings.HasPrefix(flat, "authoriz") || flat == "auths" || strings.HasSuffix(flat, "credentials") || flat == "session"
}

// split takes a name apart at what is no letter or digit, and where a capital follows a small
// letter. It reads the last bytes alone: no name is longer, and what is longer must not cost more
// than its length.
func split(name string) (words []string) {
	const most = 128
	name = name[max(0, len(name)-most):]
	from := -1
	end := func(at int) {
		if from >= 0 {
			words = append(words, strings.ToLower(name[from:at]))
		}
		from = -1
	}
	for i := range len(name) {
		switch c := name[i]; {
		case !letter(c) && !digit(c):
			end(i)
		case from < 0:
			from = i
		case upper(c) && (!upper(name[i-1]) || i+1 < len(name) && letter(name[i+1]) && !upper(name[i+1])):
			end(i)
			from = i
		}
	}
	end(len(name))
	return words
}

const (
	small   = "abcdefghijklmnopqrstuvwxyz"
	letters = small + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

func upper(c byte) bool  { return c >= 'A' && c <= 'Z' }
func letter(c byte) bool { return upper(c) || c >= 'a' && c <= 'z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

// harmless says whether a value of a secret-looking key is none: a path to the secret, a variable,
// a yes or no.
func harmless(name, value string) bool {
	switch strings.ToLower(value) {
	case "", "true", "false", "yes", "no", "on", "off", "null", "none", "nil", "[]", "{}", "~", "always", "never",
		"auto", "both", "metadata", "packages": // what signature in node.toml takes
		return true
	}
	if file(value) || variable(value) {
		return true
	}
	if words := split(name); len(words) == 1 && words[0] == "key" { // a label's key, in a toleration or a selector
		return labelKey(value)
	}
	return false
}

// labelKey says whether a value is a label's or a taint's key, as words are.
func labelKey(value string) bool {
	if len(value) > 63 {
		return false
	}
	domain, _, prefixed := strings.Cut(value, "/")
	for i := range len(value) {
		c := value[i]
		word := c >= 'a' && c <= 'z' || c == '.' || c == '_' || c == '/' || c == '-'
		if !word && !(prefixed && strings.Contains(domain, ".") && (digit(c) || letter(c))) {
			return false
		}
	}
	return value != ""
}

// file says whether a value is a path to a file, in a place where files are. A secret may begin
// with a slash as well.
func file(value string) bool {
	value = strings.TrimPrefix(strings.TrimPrefix(value, "file://"), "unix://")
	if len(value) > 255 || !strings.HasPrefix(value, "/") {
		return false
	}
	if strings.Trim(value, letters+digits+"/._-@%+:~$,{}*") != "" {
		return false
	}
	for _, dir := range []string{
		"/bin/", "/boot/", "/dev/", "/etc/", "/home/", "/lib/", "/lib64/", "/mnt/", "/opt/", "/proc/", "/root/", "/run/", "/sbin/", "/srv/",
		"/sys/", "/tmp/", "/usr/", "/var/", "/root", "/dev", "/run", "/",
	} {
		if value == dir || len(dir) > 1 && strings.HasSuffix(dir, "/") && strings.HasPrefix(value, dir) {
			return true
		}
	}
	return false
}

// variable says whether a value is $NAME, ${NAME} or a systemd specifier, and nothing else.
func variable(value string) bool {
	value, dollar := strings.CutPrefix(value, "$")
	if !dollar {
		return len(value) == 2 && value[0] == '%' && letter(value[1])
	}
	value = strings.TrimSuffix(strings.TrimPrefix(value, "{"), "}")
	return isName(value) && !digit(value[0]) && len(value) <= 64 && (strings.ToUpper(value) == value || strings.ToLower(value) == value)
}
