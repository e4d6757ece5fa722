// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// keepingComments is the splice with the comments that it would remove, as lines above: gpuadm
// writes none, so they are another process's.
func (d *Doc) keepingComments(s splice) splice {
	comments := d.commentsIn(s.start, s.end)
	if len(comments) == 0 {
		return s
	}

	line := max(d.top(), bytes.LastIndexByte(d.src[:s.start], '\n')+1)
	indent := indentOf(d.src[line:])
	eol := d.eol()
	text := indent + strings.Join(comments, eol+indent) + eol

	keepsNothing := line == s.start && s.text == ""
	endsOpen := s.end == len(d.src) && !bytes.HasSuffix(d.src, []byte("\n"))
	if keepsNothing && endsOpen {
		text = strings.TrimSuffix(text, eol)
	}
	return splice{line, s.end, text + string(d.src[line:s.start]) + s.text}
}

// commentsIn are the comments between two offsets, behind headers and in or behind values.
func (d *Doc) commentsIn(start, end int) (comments []string) {
	for _, e := range d.exprs {
		if e.end <= start || end <= e.start {
			continue
		}
		p := unstable.Parser{KeepComments: true}
		p.Reset(d.src[e.start:e.end])
		for p.NextExpression() {
			eachComment(p.Expression(), func(n *unstable.Node) {
				at := e.start + int(n.Raw.Offset)
				if start <= at && at < end {
					comments = append(comments, string(n.Data))
				}
			})
		}
	}
	return comments
}

// eachComment calls do for each comment in an expression and behind it.
func eachComment(n *unstable.Node, do func(*unstable.Node)) {
	for ; n != nil; n = n.Next() {
		if n.Kind == unstable.Comment {
			do(n)
		}
		eachComment(n.Child(), do)
	}
}
