// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// kubeletConfMost is how many bytes of a KubeletConfiguration are read; real ones have some thousand.
const kubeletConfMost = 1 << 20

// confNode is a part of a KubeletConfiguration, YAML or JSON, and where it stands in the file.
type confNode struct {
	kind       confKind
	flow       bool // in braces or brackets
	start, end int
	indent     int // bytes before it in its line
	text       string
	keys, vals []*confNode // of a map
	items      []*confNode // of a list
}

type confKind int

const (
	confMap confKind = iota
	confList
	confText    // a scalar
	confNull    // written as null or ~
	confNothing // a key without a value
)

// parseKubeletConf reads a file whose outermost level is a map, as kubelet does, and what it means.
func parseKubeletConf(data []byte) (*confNode, map[string]any, error) {
	switch {
	case len(data) > kubeletConfMost:
		return nil, nil, fmt.Errorf("it has more than %d bytes", kubeletConfMost)
	case !utf8.Valid(data):
		return nil, nil, errors.New("it is not UTF-8")
	}
	if first := bytes.TrimSpace(data); len(first) > 0 && first[0] == '{' && json.Valid(data) {
		return parseKubeletJSON(data)
	}
	if bytes.ContainsAny(data, "\ufeff\u0085\u2028\u2029\x00") {
		return nil, nil, errors.New("it has characters that YAML's versions read in different ways")
	}
	return parseKubeletYAML(data)
}

func parseKubeletYAML(data []byte) (*confNode, map[string]any, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil, errors.New("it is empty")
	} else if err != nil {
		return nil, nil, err
	}
	if err := d.Decode(&more); err == nil {
		return nil, nil, errors.New("it has more than one document, and kubelet reads one")
	} else if !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, nil, errors.New("it is no map of settings")
	}
	if line := confAnchor(&doc); line > 0 {
		return nil, nil, fmt.Errorf("line %d has an anchor, an alias or a tag: what is written in one place would mean something in another", line)
	}
	var tree map[string]any
	if err := doc.Decode(&tree); err != nil {
		return nil, nil, err
	}
	c := confYAML{data: data}
	c.lines = append(c.lines, 0)
	for i, b := range data {
		if b == '\n' || b == '\r' && (i+1 == len(data) || data[i+1] != '\n') {
			c.lines = append(c.lines, i+1)
		}
	}
	root, err := c.node(doc.Content[0], "")
	return root, tree, err
}

// confAnchor returns the line of the first anchor, alias, merge key or tag, 0 if there is none.
func confAnchor(n *yaml.Node) int {
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Tag == "!!merge" || n.Style&yaml.TaggedStyle != 0 {
		return n.Line
	}
	for _, in := range n.Content {
		if line := confAnchor(in); line > 0 {
			return line
		}
	}
	return 0
}

// confYAML finds out where nodes stand: the parser says where each begins, and its text says where it ends.
type confYAML struct {
	data  []byte
	lines []int // where each line begins
}

// offset is where a line and a column are in the file; columns count characters.
func (c confYAML) offset(n *yaml.Node) (int, error) {
	if n.Line < 1 || n.Line > len(c.lines) {
		return 0, errors.New("a line cannot be found again")
	}
	at := c.lines[n.Line-1]
	for range n.Column - 1 {
		if at >= len(c.data) {
			return 0, fmt.Errorf("line %d ends before what it holds", n.Line)
		}
		_, size := utf8.DecodeRune(c.data[at:])
		at += size
	}
	return at, nil
}

// node places one node. Only what registerWithTaints holds is looked into; of the rest of the outermost level the keys are
// enough, so that nothing there can be written in too odd a way.
func (c confYAML) node(n *yaml.Node, under string) (*confNode, error) {
	start, err := c.offset(n)
	if err != nil {
		return nil, err
	}
	out := &confNode{start: start, end: start, flow: n.Style&yaml.FlowStyle != 0, text: n.Value, indent: start - c.lines[n.Line-1]}
	switch n.Kind {
	case yaml.MappingNode:
		out.kind = confMap
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, err := c.node(n.Content[i], "key")
			if err != nil {
				return nil, err
			}
			out.keys = append(out.keys, key)
			val := &confNode{start: key.end, end: key.end}
			if under != "" || key.text == confTaints || out.flow {
				if val, err = c.node(n.Content[i+1], "value"); err != nil {
					return nil, err
				}
			}
			if val.kind == confNothing {
				val.start, val.end = key.end, key.end
			}
			out.vals = append(out.vals, val)
			out.end = max(val.end, key.end)
		}
	case yaml.SequenceNode:
		out.kind = confList
		for _, item := range n.Content {
			in, err := c.node(item, "item")
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, in)
			out.end = in.end
		}
	default:
		return out, c.scalar(n, out)
	}
	if out.flow {
		return out, c.close(out, map[confKind]byte{confMap: '}', confList: ']'}[out.kind])
	}
	return out, nil
}

// close finds the bracket that ends a flow map or list: between it and the last thing inside are blanks, comments and
// perhaps a comma.
func (c confYAML) close(n *confNode, bracket byte) error {
	at := max(n.end, n.start+1)
	for at < len(c.data) {
		switch b := c.data[at]; {
		case b == bracket:
			n.end = at + 1
			return nil
		case b == '#':
			for at < len(c.data) && !kubeletLineEnd(c.data[at]) {
				at++
			}
		case kubeletBlank(b) || b == ',' || b == ':':
			at++
		default:
			return fmt.Errorf("line %d is written in a way that cannot be edited safely", c.line(at))
		}
	}
	return errors.New("a bracket is not closed")
}

func (c confYAML) line(at int) int { return 1 + bytes.Count(c.data[:at], []byte("\n")) }

func (c confYAML) scalar(n *yaml.Node, out *confNode) error {
	rest := c.data[out.start:]
	switch out.kind = confText; {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return fmt.Errorf("line %d has a text of several lines", n.Line)
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		end := confQuoteEnd(rest)
		if end < 0 {
			return fmt.Errorf("the quote in line %d is not closed", n.Line)
		}
		out.end = out.start + end
	case n.Value == "":
		out.kind = confNothing
	case !bytes.HasPrefix(rest, []byte(n.Value)):
		return fmt.Errorf("line %d has a text of several lines", n.Line)
	default:
		out.end = out.start + len(n.Value)
		if n.Tag == "!!null" {
			out.kind = confNull
		}
	}
	return nil
}

// confQuoteEnd is where a quoted text ends that begins here, -1 if it does not.
func confQuoteEnd(text []byte) int {
	if len(text) == 0 || text[0] != '"' && text[0] != '\'' {
		return -1
	}
	for i := 1; i < len(text); i++ {
		switch {
		case text[0] == '"' && text[i] == '\\':
			i++
		case text[i] != text[0]:
		case text[0] == '\'' && i+1 < len(text) && text[i+1] == '\'':
			i++
		default:
			return i + 1
		}
	}
	return -1
}

// at returns what a map has under a key, and its index; nil if nothing.
func (n *confNode) at(key string) (*confNode, int) {
	for i, k := range n.keys {
		if k.text == key {
			return n.vals[i], i
		}
	}
	return nil, -1
}

// value is the text that a map has under a key.
func (n *confNode) value(key string) string {
	if v, _ := n.at(key); v != nil && v.kind == confText {
		return v.text
	}
	return ""
}

// confLineStart is where the line begins that an offset lies in.
func confLineStart(data []byte, at int) int {
	return strings.LastIndexAny(string(data[:at]), "\r\n") + 1
}

// confLineEnd is where it ends.
func confLineEnd(data []byte, at int) int {
	for at < len(data) && !kubeletLineEnd(data[at]) {
		at++
	}
	return at
}
