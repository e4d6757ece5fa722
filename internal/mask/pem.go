// SPDX-License-Identifier: Apache-2.0

package mask

import "strings"

// A line of a PEM block that begins or ends it: -----BEGIN PRIVATE KEY-----
const (
	pemBegin  = "-----BEGIN "
	pemEnd    = "-----END "
	pemDashes = "-----"
)

// pem replaces PEM blocks, except those that all may read. It removes all lines of a block. If the
// beginning or the end is cut off, it removes all text up to there.
func pem(text string) string {
	if !strings.Contains(text, pemDashes) {
		return text
	}

	var out strings.Builder
	for text != "" {
		at := strings.Index(text, pemDashes)
		if at < 0 {
			out.WriteString(text)
			break
		}

		rest := text[at:]
		label, _, _ := strings.Cut(rest[:min(len(rest), 80)][len(pemDashes):], pemDashes)
		switch {
		case strings.HasPrefix(rest, pemBegin) && !isPublicLabel(label):
			out.WriteString(text[:at] + Mark)
			end := strings.Index(rest, pemEnd)
			if end < 0 {
				return out.String()
			}
			text = afterDashes(rest[end+len(pemEnd):])
		case strings.HasPrefix(rest, pemEnd) && strings.Contains(label, "PRIVATE"):
			// Its beginning is cut off.
			out.Reset()
			out.WriteString(Mark)
			text = afterDashes(rest[len(pemEnd):])
		default:
			out.WriteString(text[:at+len(pemDashes)])
			text = rest[len(pemDashes):]
		}
	}

	return out.String()
}

// isPublicLabel reports whether all may read the PEM blocks with this label.
func isPublicLabel(label string) bool {
	for _, public := range []string{"CERTIFICATE", "PUBLIC KEY", "X509 CRL", "PARAMETERS"} {
		if strings.Contains(label, public) {
			return true
		}
	}
	return false
}

// afterDashes returns what comes after the label of an END line.
func afterDashes(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if at := strings.Index(line[:min(len(line), 80)], pemDashes); at >= 0 {
		return text[at+len(pemDashes):]
	}
	return text[len(line):]
}
