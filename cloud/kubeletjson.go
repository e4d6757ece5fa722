// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// confJSON places the parts of valid JSON; whoever makes it has asked json.Valid.
type confJSON struct {
	data []byte
	pos  int
}

// confJSONDeep is how deep it may be nested. A KubeletConfiguration is nested five deep.
const confJSONDeep = 100

func parseKubeletJSON(data []byte) (*confNode, map[string]any, error) {
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, nil, err
	}
	c := &confJSON{data: data}
	root, err := c.node(0)
	if err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{}
	for _, k := range root.keys {
		if seen[k.text] {
			return nil, nil, fmt.Errorf("%s stands in it twice", k.text)
		}
		seen[k.text] = true
	}
	return root, tree, nil
}

// blanks passes over blanks, and over the comma or colon that a parser of valid text need not tell apart.
func (c *confJSON) blanks() {
	for c.pos < len(c.data) && (kubeletBlank(c.data[c.pos]) || c.data[c.pos] == ',' || c.data[c.pos] == ':') {
		c.pos++
	}
}

func (c *confJSON) node(depth int) (*confNode, error) {
	if depth > confJSONDeep {
		return nil, errors.New("it is nested too deep")
	}
	c.blanks()
	n := &confNode{flow: true, start: c.pos, indent: c.pos - confLineStart(c.data, c.pos)}
	var err error
	switch c.data[c.pos] {
	case '{':
		n.kind = confMap
		err = c.inside(n, '}', func() error {
			key, err := c.node(depth + 1)
			if err != nil {
				return err
			}
			val, err := c.node(depth + 1)
			n.keys, n.vals = append(n.keys, key), append(n.vals, val)
			return err
		})
	case '[':
		n.kind = confList
		err = c.inside(n, ']', func() error {
			item, err := c.node(depth + 1)
			n.items = append(n.items, item)
			return err
		})
	case '"':
		n.kind = confText
		c.pos += confQuoteEnd(c.data[c.pos:])
		err = json.Unmarshal(c.data[n.start:c.pos], &n.text)
	default:
		n.kind = confText
		for c.pos < len(c.data) && bytes.IndexByte([]byte(" \t\r\n,:]}"), c.data[c.pos]) < 0 {
			c.pos++
		}
		if n.text = string(c.data[n.start:c.pos]); n.text == "null" {
			n.kind = confNull
		}
	}
	n.end = c.pos
	return n, err
}

// inside reads what lies between two brackets.
func (c *confJSON) inside(n *confNode, bracket byte, next func() error) error {
	c.pos++
	for c.blanks(); c.data[c.pos] != bracket; c.blanks() {
		if err := next(); err != nil {
			return err
		}
	}
	c.pos++
	n.end = c.pos
	return nil
}
