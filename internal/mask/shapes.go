// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// pem replaces PEM blocks, but those that all may read. The lines of one go away, as many as there
// are: where the beginning or the end is cut off, all up to it.
func pem(text string) string {
	const begin, end, dashes = "-----BEGIN ", "-----END ", "-----"
	if !strings.Contains(text, dashes) {
		return text
	}
	public := func(label string) bool {
		return strings.Contains(label, "CERTIFICATE") || strings.Contains(label, "PUBLIC KEY") || strings.Contains(label, "X509 CRL") || strings.Contains(label, "PARAMETERS")
	}
	var out strings.Builder
	for text != "" {
		at := strings.Index(text, dashes)
		if at < 0 {
			out.WriteString(text)
			break
		}
		rest := text[at:]
		label, _, _ := strings.Cut(rest[:min(len(rest), 80)][len(dashes):], dashes)
		switch {
		case strings.HasPrefix(rest, begin) && !public(label):
			out.WriteString(text[:at] + Mark)
			e := strings.Index(rest, end)
			if e < 0 {
				return out.String()
			}
			text = afterDashes(rest[e+len(end):])
		case strings.HasPrefix(rest, end) && strings.Contains(label, "PRIVATE"): // its beginning is cut off
			out.Reset()
			out.WriteString(Mark)
			text = afterDashes(rest[len(end):])
		default:
			out.WriteString(text[:at+len(dashes)])
			text = rest[len(dashes):]
		}
	}
	return out.String()
}

// afterDashes is what comes behind the label of an END line.
func afterDashes(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if at := strings.Index(line[:min(len(line), 80)], "-----"); at >= 0 {
		return text[at+5:]
	}
	return text[len(line):]
}

// shapes takes out of a line what is a secret by its form: logins and queries of URLs, tokens, and
// what follows "Bearer".
func shapes(s string) string {
	s = urls(s)
	var out strings.Builder
	scheme := false // the word before was Bearer or Basic
	for i := 0; i < len(s); {
		end := i
		for end < len(s) && (tokenByte(s[end]) || scheme && (s[end] == '/' || s[end] == '=')) {
			end++
		}
		if end == i {
			scheme = scheme && (s[i] == ' ' || s[i] == '\t' || s[i] == ':')
			out.WriteByte(s[i])
			i++
			continue
		}
		word := s[i:end]
		if scheme && opaque(word) || tokenShape(word) {
			out.WriteString(Mark)
		} else {
			out.WriteString(word)
		}
		lower := strings.ToLower(word[:min(len(word), 7)])
		scheme = lower == "bearer" || lower == "basic"
		i = end
	}
	return out.String()
}

func tokenByte(c byte) bool {
	return letter(c) || digit(c) || c == '-' || c == '_' || c == '.' || c == '+' || c == '~'
}

// opaque says whether a word is no word of a language: six characters or more, not small letters
// alone.
func opaque(word string) bool {
	return len(word) >= 6 && strings.ContainsFunc(word, func(r rune) bool { return r < 'a' && r != '-' && r != '.' && r != '/' || r > 'z' })
}

// tokenShape says whether a word is a token by how it begins. Each is named in its issuer's
// documentation, and in the rules of gitleaks (config/gitleaks.toml) or in GitHub's list of
// supported secret scanning patterns.
func tokenShape(word string) bool {
	if len(word) < 12 {
		return false
	}
	for _, known := range [...]struct {
		begins string
		more   int // bytes that follow at least
	}{
		{"ghp_", 20}, {"gho_", 20}, {"ghu_", 20}, {"ghs_", 20}, {"ghr_", 20}, {"github_pat_", 20}, {"glpat-", 16}, {"glrt-", 16}, // GitHub, GitLab
		{"xoxb-", 10}, {"xoxp-", 10}, {"xoxa-", 10}, {"xoxs-", 10}, {"xapp-", 10}, // Slack
		{"nvapi-", 16}, {"hf_", 20}, {"npm_", 20}, {"pypi-", 16}, {"dckr_pat_", 16}, {"sk_live_", 16}, // NVIDIA NGC, Hugging Face, npm, PyPI, Docker, Stripe
		{"AIza", 30}, {"ya29.", 16}, {"GOCSPX-", 16}, {"hvs.", 16}, {"hvb.", 16}, {"k8s-aws-v1.", 8}, // Google, Vault, EKS
		{"tskey-", 10}, {"AGE-SECRET-KEY-1", 16}, // Tailscale, age
	} {
		if rest, ok := strings.CutPrefix(word, known.begins); ok && len(rest) >= known.more {
			return true
		}
	}
	switch {
	case strings.HasPrefix(word, "AKIA"), strings.HasPrefix(word, "ASIA"): // AWS: an access key's ID
		return len(word) == 20 && strings.ToUpper(word) == word
	case strings.HasPrefix(word, "eyJ"): // a JSON web token: RFC 7519, 3; base64 of {"
		return strings.Contains(word, ".")
	case strings.HasPrefix(word, "K10"): // K3s: K10 and the hash of its CA; the password follows
		return len(word) >= 67
	}
	return bootstrapToken(strings.Trim(word, ".-+~"))
}

// bootstrapToken says whether a word is a bootstrap token of Kubernetes: [a-z0-9]{6}\.[a-z0-9]{16}.
// Words of a host's name have the form by chance; a token of letters alone is one in a thousand.
// Sources: https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#token-format,
// and BootstrapTokenPattern in Kubernetes' staging/src/k8s.io/cluster-bootstrap/token/api/types.go.
func bootstrapToken(word string) bool {
	return len(word) == 23 && word[6] == '.' && strings.Trim(word[:6]+word[7:], small+digits) == "" && strings.ContainsAny(word, digits)
}

// urls takes logins and queries out of the URLs of a line.
func urls(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	var out strings.Builder
	for {
		at := strings.Index(s, "://")
		if at < 0 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:at+3])
		s = s[at+3:]
		end := len(s)
		if next := strings.Index(s, "://"); next >= 0 { // the next URL begins with its scheme
			for end = next; end > 0 && letter(s[end-1]); {
				end--
			}
		}
		if stop := strings.IndexAny(s[:end], " \t\"'<>`|\\"); stop >= 0 {
			end = stop
		}
		out.WriteString(plainURL(s[:end]))
		s = s[end:]
	}
}

// plainURL is what comes behind the :// without login and query. By RFC 3986, 3.2, a login ends at
// the first @ before the first slash; curl takes the last @ before it, and people write passwords
// that hold a slash as well. So all up to the last @ goes, unless what is before it has no colon
// ahead of the first slash: then it is a host, and the @ belongs to its path.
func plainURL(s string) string {
	var login string
	if at := loginEnd(s); at >= 0 {
		login, s = Mark+"@", s[at+1:]
	}
	if at := strings.IndexByte(s, '?'); at >= 0 && s[at+1:] != "" && !plainQuery(s[at+1:]) {
		s = s[:at+1] + Mark
	}
	return login + s
}

// loginEnd is the index of the @ behind a URL's login, -1 where there is none.
func loginEnd(s string) int {
	at := strings.LastIndexByte(s, '@')
	if at >= 0 && (strings.HasPrefix(s[at:], "@sha256:") || strings.HasPrefix(s[at:], "@sha512:")) { // an image's digest
		at = strings.LastIndexByte(s[:at], '@')
	}
	if at < 0 {
		return -1
	}
	slash := strings.IndexAny(s[:at], "/?#")
	if slash >= 0 && strings.IndexByte(s[:slash], ':') < 0 {
		return strings.LastIndexByte(s[:slash], '@')
	}
	return at
}

// plainQuery says whether a query asks a package repository for its mirrors, and holds nothing
// else.
// Sources: mirrorlist= in the .repo files of Rocky Linux and Fedora, and the documentation of
// MirrorManager.
func plainQuery(q string) bool {
	for pair := range strings.SplitSeq(q, "&") {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "repo", "arch", "release", "version", "country", "infra", "content", "protocol":
		default:
			return false
		}
		if len(value) > 40 {
			return false
		}
	}
	return true
}
