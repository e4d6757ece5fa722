// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// urls masks logins and queries in the URLs of a line.
func urls(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}

	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "://")
		out.WriteString(before)
		if !found {
			return out.String()
		}

		out.WriteString("://")
		end := urlEnd(rest)
		out.WriteString(maskURL(rest[:end]))
		s = rest[end:]
	}
}

// urlEnd returns the length of the URL that s begins with, behind its "://".
func urlEnd(s string) int {
	end := len(s)
	if next := strings.Index(s, "://"); next >= 0 { // the next URL begins with its scheme
		end = next
		for end > 0 && letter(s[end-1]) {
			end--
		}
	}

	if stop := strings.IndexAny(s[:end], " \t\"'<>`|\\"); stop >= 0 {
		return stop
	}
	return end
}

// maskURL masks login and query in what follows the "://".
func maskURL(s string) string {
	var login string
	if at := loginEnd(s); at >= 0 {
		login = Mark + "@"
		s = s[at+1:]
	}

	before, query, found := strings.Cut(s, "?")
	if found && query != "" && !isMirrorQuery(query) {
		s = before + "?" + Mark
	}
	return login + s
}

// loginEnd returns the index of the @ after a URL's login, -1 if the URL has no login.
//
// By RFC 3986, 3.2, a login ends at the first @ before the first slash. curl takes the last @
// before that slash, and people write passwords that contain a slash. So a login extends to the
// last @ of the URL, with one exception: if there is no colon before the first slash, the part
// before the slash is a host, and an @ after it belongs to the path.
func loginEnd(s string) int {
	at := strings.LastIndexByte(s, '@')
	if at >= 0 && isDigest(s[at:]) {
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

// isDigest reports whether s is the end of an image's name that pins its digest.
func isDigest(s string) bool {
	return strings.HasPrefix(s, "@sha256:") || strings.HasPrefix(s, "@sha512:")
}

// isMirrorQuery reports whether a query asks a package repository for its mirrors, and contains
// nothing else.
// Sources: mirrorlist= in the .repo files of Rocky Linux and Fedora, and the documentation of
// MirrorManager.
func isMirrorQuery(query string) bool {
	for pair := range strings.SplitSeq(query, "&") {
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
