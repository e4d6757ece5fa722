// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// shapes masks what is a secret by its form: logins and queries of URLs, tokens, and what follows
// "Bearer".
func shapes(s string) string {
	s = named(told(urls(s)))
	var out strings.Builder
	afterScheme := false // the word before was Bearer or Basic
	for i := 0; i < len(s); {
		end := tokenEnd(s, i, afterScheme)
		if end == i {
			afterScheme = afterScheme && (s[i] == ' ' || s[i] == '\t' || s[i] == ':')
			out.WriteByte(s[i])
			i++
			continue
		}

		word := s[i:end]
		if afterScheme && isOpaque(word) || isToken(word) {
			out.WriteString(Mark)
		} else {
			out.WriteString(word)
		}

		afterScheme = strings.EqualFold(word, "bearer") || strings.EqualFold(word, "basic")
		i = end
	}

	return out.String()
}

// tokenEnd returns the end of the word at i. Behind Bearer and Basic a word is base64, which
// contains / and = too.
func tokenEnd(s string, i int, base64 bool) int {
	for i < len(s) && (isTokenByte(s[i]) || base64 && (s[i] == '/' || s[i] == '=')) {
		i++
	}
	return i
}

func isTokenByte(c byte) bool {
	return letter(c) || digit(c) || c == '-' || c == '_' || c == '.' || c == '+' || c == '~'
}

// isOpaque reports whether a word belongs to no language: it has six characters or more, and others
// than small letters, hyphens, dots and slashes.
func isOpaque(word string) bool {
	return len(word) >= 6 && strings.Trim(word, small+"-./") != ""
}

// isToken reports whether a word is a token by its beginning. Each beginning is named in its
// issuer's documentation, and in the rules of gitleaks (config/gitleaks.toml) or in GitHub's list
// of supported secret scanning patterns.
func isToken(word string) bool {
	if len(word) < 12 {
		return false
	}

	for _, known := range [...]struct {
		prefix string
		more   int // bytes that follow at least
	}{
		// GitHub, GitLab
		{"ghp_", 20},
		{"gho_", 20},
		{"ghu_", 20},
		{"ghs_", 20},
		{"ghr_", 20},
		{"github_pat_", 20},
		{"glpat-", 16},
		{"glrt-", 16},
		// Slack
		{"xoxb-", 10},
		{"xoxp-", 10},
		{"xoxa-", 10},
		{"xoxs-", 10},
		{"xapp-", 10},
		// NVIDIA NGC, Hugging Face, npm, PyPI, Docker, Stripe
		{"nvapi-", 16},
		{"hf_", 20},
		{"npm_", 20},
		{"pypi-", 16},
		{"dckr_pat_", 16},
		{"sk_live_", 16},
		// Google, Vault, EKS
		{"AIza", 30},
		{"ya29.", 16},
		{"GOCSPX-", 16},
		{"hvs.", 16},
		{"hvb.", 16},
		{"k8s-aws-v1.", 8},
		// Tailscale, age
		{"tskey-", 10},
		{"AGE-SECRET-KEY-1", 16},
	} {
		rest, ok := strings.CutPrefix(word, known.prefix)
		if ok && len(rest) >= known.more {
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

	return isBootstrapToken(strings.Trim(word, ".-+~"))
}

// isBootstrapToken reports whether a word is a bootstrap token of Kubernetes:
// [a-z0-9]{6}\.[a-z0-9]{16}. The parts of a host's name may have this form by chance, so a word
// without digits is not taken for a token: of the real ones, one in a thousand has none.
// Sources: https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/#token-format,
// and BootstrapTokenPattern in Kubernetes' staging/src/k8s.io/cluster-bootstrap/token/api/types.go.
func isBootstrapToken(word string) bool {
	if len(word) != 23 || word[6] != '.' {
		return false
	}
	both := word[:6] + word[7:]
	return strings.Trim(both, small+digits) == "" && strings.ContainsAny(word, digits)
}
