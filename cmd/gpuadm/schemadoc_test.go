// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/gpuadm/gpuadm/test/must"
)

// fieldDocs are the comments beside the fields of gpuadm's structs, by package and type.
type fieldDocs map[string]map[string]map[string]string

// of reads the comments of a struct's fields.
func (d fieldDocs) of(t *testing.T, of reflect.Type) map[string]string {
	dir, ours := strings.CutPrefix(of.PkgPath(), "github.com/gpuadm/gpuadm/")
	if !ours {
		return nil
	}
	if d[dir] == nil {
		d[dir] = map[string]map[string]string{}
		files := must.Get(filepath.Glob("../../" + dir + "/*.go"))(t)
		for _, file := range files {
			f := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments))(t)
			ast.Inspect(f, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok {
					if fields, ok := spec.Type.(*ast.StructType); ok {
						d[dir][spec.Name.Name] = commentsOf(fields)
					}
				}
				return true
			})
		}
	}

	return d[dir][of.Name()]
}

// commentsOf are the comments of fields: those above a field, else the one beside it.
func commentsOf(s *ast.StructType) map[string]string {
	docs := map[string]string{}
	for _, field := range s.Fields.List {
		text := field.Doc.Text()
		if text == "" {
			text = field.Comment.Text()
		}
		for _, name := range field.Names {
			docs[name.Name] = strings.Join(strings.Fields(text), " ")
		}
	}

	return docs
}

// describe gives each property of a type's schema the comment of its field.
func (d fieldDocs) describe(t *testing.T, s *jsonschema.Schema, of reflect.Type) {
	if s == nil {
		return
	}
	switch of.Kind() {
	case reflect.Pointer:
		d.describe(t, s, of.Elem())
	case reflect.Slice, reflect.Array:
		d.describe(t, s.Items, of.Elem())
	case reflect.Map:
		d.describe(t, s.AdditionalProperties, of.Elem())
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				name = f.Name
			}
			in := s.Properties[name]
			if in == nil || f.Anonymous {
				continue
			}
			parent := of
			for _, i := range f.Index[:len(f.Index)-1] { // an embedded struct has the field
				if parent = parent.Field(i).Type; parent.Kind() == reflect.Pointer {
					parent = parent.Elem()
				}
			}

			in.Description = d.of(t, parent)[f.Name]
			d.describe(t, in, f.Type)
		}
	}
}
