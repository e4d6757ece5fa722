// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// node.toml is world-readable and goes into images, so it must not contain a secret. If it does,
// the error must not repeat the secret in a log: every text that leaves this package omits what
// looks like a secret.

// mask replaces a secret.
const mask = "***"

// secretKey says whether a key is named like the key of a secret.
func secretKey(name string) bool {
	flat := nearest.Flatten(name)
	words := []string{
		"token", "bearer", "secret", "credential",
		"password", "passwd", "passphrase",
		"privatekey", "apikey",
	}
	return slices.ContainsFunc(words, func(word string) bool {
		return strings.Contains(flat, word)
	})
}

// isPath says whether the text of a value, with its quotes, is a path: the path of a secret is
// none. A secret in base64 may begin with a slash, so the path begins with a folder of the root.
func isPath(text []byte) bool {
	const file = `^\s*(?:"/(?:etc|home|mnt|opt|root|run|srv|usr|var)(?:/[\w.@+-]+)+"|'/(?:etc|home|mnt|opt|root|run|srv|usr|var)(?:/[\w.@+-]+)+')\s*$`
	return regexp.MustCompile(file).Match(text) && !regexp.MustCompile(secretShape).Match(text)
}

const (
	// A name and the separator before its value.
	assignment = `([\w-]+)["']?[ \t]*[=:.][ \t]*`
	// A secret by its shape: the part before an @ in a URL, kubeadm's bootstrap tokens, JSON web
	// tokens, PEM blocks of keys with what follows on the line or in the quotes.
	secretShape = `://[^\n]*@|\b[a-z0-9]{6}\.[a-z0-9]{16}\b|\beyJ[\w-]{8,}\.[\w.-]*|-----BEGIN [A-Z ]*PRIVATE KEY[^"\n]*`
)

// lexicalSecrets finds secrets in a line, whatever its grammar: in comments, in text that is no
// TOML. Each span ends at the end of the line.
func lexicalSecrets(data []byte, line span) []span {
	var found []span
	shownEnd := min(line.end, line.start+(maxText+64)*utf8.UTFMax)
	shown := data[line.start:shownEnd]
	for _, at := range regexp.MustCompile(assignment).FindAllSubmatchIndex(shown, -1) {
		name := string(shown[at[2]:at[3]])
		valueAt := line.start + at[1]
		if secretKey(name) && valueAt < line.end && !isPath(data[valueAt:line.end]) {
			found = append(found, span{valueAt, line.end})
			break
		}
	}

	at := regexp.MustCompile(secretShape).FindIndex(data[line.start:line.end])
	if at != nil {
		found = append(found, span{line.start + at[0], line.end})
	}
	return found
}

// brokenSecrets finds where secrets may begin in an expression that is not TOML. gpuadm shows
// nothing after that: without a grammar the end of a secret is unknown.
func brokenSecrets(data []byte, from int) []span {
	text := data[from:]
	for _, at := range regexp.MustCompile(`[\w-]+`).FindAllIndex(text, -1) {
		if secretKey(string(text[at[0]:at[1]])) {
			value := bytes.TrimLeft(text[at[1]:], " \t=:\"'")
			return []span{{len(data) - len(value), len(data)}}
		}
	}

	return nil
}

// scrub removes secrets from messages by their shape.
func scrub(faults trouble.Faults) {
	shape := regexp.MustCompile(secretShape)
	for _, f := range faults {
		f.What = shape.ReplaceAllString(f.What, mask)
		for i, fix := range f.Try {
			f.Try[i] = shape.ReplaceAllString(fix, mask)
		}
	}
}
