// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"slices"
	"strings"
)

// isSecretName reports whether secrets have such a name of a key, a variable, a flag or a header.
func isSecretName(name string) bool {
	words := splitName(name)
	if len(words) == 0 {
		return false
	}

	flat := strings.Join(words, "")
	last := words[len(words)-1]
	if describesSecret(last) && flat != "userpass" {
		return false
	}
	if namesPublicPart(words, flat) {
		return false
	}
	return hasSecretPart(flat) || hasSecretWord(words) || isKeyData(words) || endsInSecret(words)
}

// namesPublicPart reports whether a name is that of an identifier, a public key or a hash: it looks
// like a secret's, and all may read the value.
func namesPublicPart(words []string, flat string) bool {
	last := words[len(words)-1]
	if last == "id" && len(words) > 1 {
		// The ID of a key says which key it is.
		ofKey := strings.HasSuffix(words[len(words)-2], "key")
		if ofKey || slices.Contains(words, "provider") {
			return true
		}
	}

	publicKey := strings.HasPrefix(flat, "pub") && strings.HasSuffix(flat, "key")
	return publicKey || strings.Contains(flat, "cacerthash") || slices.Contains(words, "public")
}

// hasSecretPart reports whether a name, without what separates its words, has a part that secrets
// have.
func hasSecretPart(flat string) bool {
	for _, part := range []string{
		"passw", "passphrase", "passcode", "token", "secret", "credential", "cookie", "bearer",
		"apikey", "accesskey", "privatekey", "signature", "authoriz", "authentic",
		"connectionstring", "webhookurl", "kubeenv",
	} {
		if strings.Contains(flat, part) {
			return true
		}
	}
	return false
}

// hasSecretWord reports whether one of the words alone says that the value is a secret.
func hasSecretWord(words []string) bool {
	for _, word := range words {
		switch word {
		case "pwd", "pass", "pat", "auth", "auths", "sig", "session", "phpsessid",
			"jwt", "otp", "psk", "sas", "cred", "creds", "dsn", "community":
			return true
		case "header", "headers": // OTEL_EXPORTER_OTLP_HEADERS; a kernel has headers too
			if len(words) > 1 && words[0] != "kernel" && words[0] != "linux" {
				return true
			}
		}
	}
	return false
}

// isKeyData reports whether a name ends in "key" and a word for the key's bytes: client-key-data.
func isKeyData(words []string) bool {
	i := slices.Index(words, "key")
	if i < 0 || i != len(words)-2 {
		return false
	}

	switch words[i+1] {
	case "data", "pem", "base64", "b64", "material", "value", "content":
		return true
	}

	return false
}

// endsInSecret reports whether the last word of a name says that the value is a secret.
func endsInSecret(words []string) bool {
	last := words[len(words)-1]
	switch {
	case strings.HasSuffix(last, "pass"):
		return !strings.HasSuffix(last, "bypass") && !strings.HasSuffix(last, "compass")
	case strings.HasSuffix(last, "pwd"), strings.HasSuffix(last, "psk"), last == "private":
		return true
	case last == "keys" && len(words) > 1:
		return true
	case last == "key":
		switch words[max(0, len(words)-2)] {
		case "host", "primary", "foreign", "sort", "partition", "topology", "label", "taint", "gpg":
			return false
		}
		return true
	case strings.HasSuffix(last, "key"):
		switch last {
		case "gpgkey", "newkey", "pubkey", "hotkey", "hostkey", "sortkey", "monkey", "turnkey", "hashkey":
			return false
		}
		return true
	}

	return false
}

// describesSecret reports whether the last word of a name says that the value describes a secret
// and is none: passwordFile, tokenTTL, auth_type.
func describesSecret(last string) bool {
	switch last {
	case "file", "files", "path", "paths", "dir", "dirs", "directory",
		"ttl", "timeout", "expiry", "expires", "expiration", "duration", "seconds", "period", "interval",
		"type", "mode", "modes", "policy", "provider", "providers", "class", "plugin", "model", "method",
		"enable", "enabled", "disabled", "required", "level", "stdin",
		"version", "size", "count", "limit", "rotation",
		"fingerprint", "algorithm", "alg", "hashalgo",
		"name", "names", "username", "server", "realm", "issuer", "audience", "audiences", "endpoint",
		"attributes", "config", "kubeconfig", "configs":
		return true
	}
	return false
}

// holdsSecrets reports whether all that is below a name is secret, whatever its keys are: HTTP
// headers, the login of a registry.
func holdsSecrets(name string) bool {
	words := splitName(name)
	if len(words) == 0 {
		return false
	}

	switch words[len(words)-1] {
	case "header", "headers", "auth", "credential", "credentials", "secrets", "tokens":
		return true
	}

	return false
}

// isSection reports whether a name is that of a section with settings of its own: kubelet's
// "authentication".
func isSection(name string) bool {
	flat := strings.Join(splitName(name), "")
	switch {
	case flat == "auths", flat == "session":
		return true
	case strings.HasPrefix(flat, "authentic"), strings.HasPrefix(flat, "authoriz"):
		return true
	}

	return strings.HasSuffix(flat, "credentials")
}

// splitName splits a name into words in small letters: at all bytes but letters and digits, and
// where a capital follows a small letter. It reads the last bytes only: no name is longer, and a
// longer text must not cost more than its length.
func splitName(name string) (words []string) {
	const longest = 128
	name = name[max(0, len(name)-longest):]

	start := -1 // of the word that i is in; -1: none
	for i := range len(name) {
		c := name[i]
		inWord := letter(c) || digit(c)
		if start >= 0 && (!inWord || beginsWord(name, i)) {
			words = append(words, strings.ToLower(name[start:i]))
			start = -1
		}
		if inWord && start < 0 {
			start = i
		}
	}

	if start >= 0 {
		words = append(words, strings.ToLower(name[start:]))
	}
	return words
}

// beginsWord reports whether the letter at i, within a word, is a capital that begins a new one:
// the P of dbPassword, the second T of HTTPToken.
func beginsWord(name string, i int) bool {
	if !upper(name[i]) {
		return false
	}
	smallFollows := i+1 < len(name) && letter(name[i+1]) && !upper(name[i+1])
	return smallFollows || !upper(name[i-1])
}

const (
	small   = "abcdefghijklmnopqrstuvwxyz"
	letters = small + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

func upper(c byte) bool  { return c >= 'A' && c <= 'Z' }
func letter(c byte) bool { return upper(c) || c >= 'a' && c <= 'z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

// isIdentifier reports whether s may be the name of a variable.
func isIdentifier(s string) bool {
	return s != "" && strings.Trim(s, letters+digits+"_") == ""
}
