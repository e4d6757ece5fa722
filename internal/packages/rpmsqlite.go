// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A sqlite is an SQLite database as far as it must be read here: tables, row by row. dnf keeps in one why each package
// was installed and which transactions were interrupted; asking dnf itself takes half a second and writes to its logs.
// Source: https://www.sqlite.org/fileformat2.html
type sqlite struct {
	data   []byte
	wal    map[uint32][]byte // pages that were committed and are not yet in data
	page   int               // size
	usable int
}

// A row's columns are int64, float64, string, []byte or nil.
type row []any

func (r row) num(i int) int64 {
	if i < len(r) {
		if n, ok := r[i].(int64); ok {
			return n
		}
	}
	return 0
}

func (r row) text(i int) string {
	if i < len(r) {
		if s, ok := r[i].(string); ok {
			return s
		}
	}
	return ""
}

var errSqlite = errors.New("not an SQLite database that can be read")

// openSqlite takes the bytes of a database and of its write-ahead log, if there is one.
func openSqlite(data, wal []byte) (*sqlite, error) {
	if len(data) < 100 || string(data[:16]) != "SQLite format 3\x00" {
		return nil, errSqlite
	}
	db := &sqlite{data: data, page: int(binary.BigEndian.Uint16(data[16:]))}
	if db.page == 1 {
		db.page = 1 << 16
	}
	db.usable = db.page - int(data[20])
	if db.page < 512 || db.page&(db.page-1) != 0 || db.usable < 480 || binary.BigEndian.Uint32(data[56:]) != 1 { // 1: UTF-8
		return nil, errSqlite
	}
	db.wal = db.committed(wal)
	return db, nil
}

// committed returns the newest pages of a write-ahead log that belong to it and were committed.
func (db *sqlite) committed(wal []byte) map[uint32][]byte {
	const head, frameHead = 32, 24
	if len(wal) < head {
		return nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch binary.BigEndian.Uint32(wal) {
	case 0x377f0682:
	case 0x377f0683:
		order = binary.BigEndian
	default:
		return nil
	}
	s0, s1 := walSum(order, 0, 0, wal[:24])
	if int(binary.BigEndian.Uint32(wal[8:])) != db.page || s0 != binary.BigEndian.Uint32(wal[24:]) || s1 != binary.BigEndian.Uint32(wal[28:]) {
		return nil
	}
	all, since := map[uint32][]byte{}, map[uint32][]byte{}
	for at := head; at+frameHead+db.page <= len(wal); at += frameHead + db.page {
		frame, page := wal[at:at+frameHead], wal[at+frameHead:at+frameHead+db.page]
		s0, s1 = walSum(order, s0, s1, frame[:8])
		s0, s1 = walSum(order, s0, s1, page)
		if string(frame[8:16]) != string(wal[16:24]) || s0 != binary.BigEndian.Uint32(frame[16:]) || s1 != binary.BigEndian.Uint32(frame[20:]) {
			break // left from before the log was begun anew, or never finished
		}
		since[binary.BigEndian.Uint32(frame)] = page
		if binary.BigEndian.Uint32(frame[4:]) != 0 { // commits
			for n, p := range since {
				all[n] = p
			}
			clear(since)
		}
	}
	return all
}

func walSum(order binary.ByteOrder, s0, s1 uint32, b []byte) (uint32, uint32) {
	for i := 0; i+8 <= len(b); i += 8 {
		s0 += order.Uint32(b[i:]) + s1
		s1 += order.Uint32(b[i+4:]) + s0
	}
	return s0, s1
}

func (db *sqlite) pageAt(n uint32) ([]byte, error) {
	if p, ok := db.wal[n]; ok {
		return p, nil
	}
	end := int64(n) * int64(db.page)
	if n == 0 || end > int64(len(db.data)) {
		return nil, errSqlite
	}
	return db.data[end-int64(db.page) : end], nil
}

// table returns a table's rows in the order of their ids. A column that is the id itself is nil in the row; the id is
// put in its place where idColumn says which that is; else idColumn is -1. No such table: no rows.
func (db *sqlite) table(name string, idColumn int) ([]row, error) {
	schema, err := db.rows(1, -1)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(schema, func(r row) bool { return r.text(0) == "table" && strings.EqualFold(r.text(1), name) })
	if i < 0 {
		return nil, nil
	}
	all, err := db.rows(uint32(schema[i].num(3)), idColumn)
	if err != nil {
		err = fmt.Errorf("cannot read table %s: %w", name, err)
	}
	return all, err
}

// rows walks a table's b-tree.
func (db *sqlite) rows(root uint32, idColumn int) (all []row, err error) {
	seen := map[uint32]bool{} // a damaged tree may lead round in a circle
	var walk func(uint32) error
	walk = func(n uint32) error {
		p, err := db.pageAt(n)
		if err != nil || seen[n] {
			return errSqlite
		}
		seen[n] = true
		head := 0
		if n == 1 {
			head = 100
		}
		count := int(binary.BigEndian.Uint16(p[head+3:]))
		kind, cells := p[head], head+8
		if kind == 0x05 {
			cells = head + 12
		}
		if cells+2*count > len(p) || kind != 0x05 && kind != 0x0d {
			return errSqlite
		}
		for i := range count {
			at := int(binary.BigEndian.Uint16(p[cells+2*i:]))
			if at+4 > len(p) {
				return errSqlite
			}
			if kind == 0x05 {
				if err := walk(binary.BigEndian.Uint32(p[at:])); err != nil {
					return err
				}
				continue
			}
			r, err := db.cell(p[at:], idColumn)
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		if kind == 0x05 {
			return walk(binary.BigEndian.Uint32(p[head+8:]))
		}
		return nil
	}
	return all, walk(root)
}

// cell reads a leaf's cell: length, id, and the payload, whose end may lie on pages of its own.
func (db *sqlite) cell(p []byte, idColumn int) (row, error) {
	size, n := uvarint(p)
	id, m := uvarint(p[n:])
	p = p[n+m:]
	if n == 0 || m == 0 || size > uint64(len(db.data)+len(db.wal)*db.page) {
		return nil, errSqlite
	}
	local := int(size)
	if most := db.usable - 35; local > most {
		least := (db.usable-12)*32/255 - 23
		if local = least + (int(size)-least)%(db.usable-4); local > most {
			local = least
		}
	}
	if local > len(p) {
		return nil, errSqlite
	}
	payload := p[:local:local]
	if local < int(size) {
		if local+4 > len(p) {
			return nil, errSqlite
		}
		for next := binary.BigEndian.Uint32(p[local:]); len(payload) < int(size); {
			more, err := db.pageAt(next)
			if err != nil {
				return nil, err
			}
			next = binary.BigEndian.Uint32(more)
			payload = append(payload, more[4:min(db.usable, 4+int(size)-len(payload))]...)
		}
	}
	r, err := columns(payload)
	if err == nil && idColumn >= 0 && idColumn < len(r) {
		r[idColumn] = int64(id)
	}
	return r, err
}

// columns reads a header of types, then the values.
func columns(p []byte) (row, error) {
	size, n := uvarint(p)
	if n == 0 || size < uint64(n) || size > uint64(len(p)) {
		return nil, errSqlite
	}
	types, values := p[n:size], p[size:]
	var r row
	for len(types) > 0 {
		t, n := uvarint(types)
		if n == 0 {
			return nil, errSqlite
		}
		types = types[n:]
		value, n, err := column(t, values)
		if err != nil {
			return nil, err
		}
		r, values = append(r, value), values[n:]
	}
	return r, nil
}

func column(t uint64, p []byte) (value any, size int, err error) {
	length := []int{0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0}
	if t >= 12 {
		if t > math.MaxInt32 {
			return nil, 0, errSqlite
		}
		size = int(t-12) / 2
	} else {
		size = length[t]
	}
	if size > len(p) {
		return nil, 0, errSqlite
	}
	switch {
	case t == 0:
	case t <= 6:
		n := int64(int8(p[0]))
		for _, b := range p[1:size] {
			n = n<<8 | int64(b)
		}
		value = n
	case t == 7:
		value = math.Float64frombits(binary.BigEndian.Uint64(p))
	case t == 8 || t == 9:
		value = int64(t - 8)
	case t >= 12 && t%2 == 0:
		value = p[:size]
	case t >= 12:
		value = string(p[:size])
	}
	return value, size, nil
}

// uvarint reads SQLite's varint: seven bits a byte from the highest on, the ninth byte whole. n is 0 if p is too short.
func uvarint(p []byte) (value uint64, n int) {
	for i := 0; i < 9 && i < len(p); i++ {
		if i == 8 {
			return value<<8 | uint64(p[i]), 9
		}
		value = value<<7 | uint64(p[i]&0x7f)
		if p[i] < 0x80 {
			return value, i + 1
		}
	}
	return 0, 0
}
