// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import "slices"

// Kernel is the kernel that Ubuntu's archive has precompiled modules for.
const Kernel = "6.1.0-99-lab"

// ubuntuNVIDIA are the editions of NVIDIA's repository for one release of Ubuntu: the listings of 22.04 and 24.04 have the same
// names, and where one is of a part, another of the same branch gives the rest.
func ubuntuNVIDIA(distro string) []edition {
	const (
		whole550 = "ubuntu2204 nvidia 550.54.15" // the one list of a whole repository up to 580
		whole595 = "ubuntu2404 nvidia 595.45.04" // and the one from 590 on
		virtual  = "ubuntu2204 nvidia 575.57.08" // how nvidia-persistenced and libnvidia-cfg1 hang together from 575 on
		draws    = "ubuntu2404 nvidia 610.43.02" // what libnvidia-compute draws in from 590 on
	)
	of := distro + " nvidia"
	// Of 580.95.05 and 580.105.08 only companions are listed; they have the names and revisions of 580.65.06 and 580.126.20.
	names580 := []string{
		"ubuntu2204 nvidia 580.65.06", "ubuntu2404 nvidia 580.159.03", "ubuntu2404 nvidia 580.159.04", "ubuntu2404 nvidia 580.126.20",
		"~" + whole550,
	}
	names570 := []string{"ubuntu2204 nvidia 570.133.20", "ubuntu2404 nvidia 570.133.20", "ubuntu2404 nvidia 570.124.06", "~" + whole550}
	list := []edition{
		{of: of, version: "535.183.01", revision: "-0ubuntu1", companion: "-1", names: []string{"ubuntu2204 nvidia 535.183.01", whole550}, without: []string{"imex"}},
		{of: of, version: "550.54.15", revision: "-0ubuntu1", companion: "-1", names: []string{whole550}},
		{of: of, version: "570.133.20", revision: "-0ubuntu1", companion: "-1", names: names570},
		{of: of, version: "570.148.08", revision: "-1ubuntu1", companion: "-1", names: append([]string{"ubuntu2204 nvidia 570.148.08"}, names570...)},
		{of: of, version: "575.57.08", revision: "-0ubuntu1", companion: "-1", names: []string{virtual, "ubuntu2404 nvidia 570.124.06", "~" + whole550}},
	}
	for _, v := range []string{"580.65.06", "580.95.05", "580.105.08"} {
		list = append(list, edition{of: of, version: v, revision: "-0ubuntu1", companion: "-1", names: names580, relations: []string{virtual}})
	}
	list = append(list,
		edition{of: of, version: "580.159.04", revision: "-1ubuntu1", companion: "-1ubuntu1", names: names580, relations: []string{virtual}},
		edition{of: of, version: "590.48.01", revision: "-0ubuntu1", companion: "-1", names: []string{"ubuntu2404 nvidia 590.48.01", whole595}, relations: []string{draws, virtual}},
	)
	latest := []edition{
		{version: "595.58.03", revision: "-1ubuntu1"},
		{version: "595.71.05", revision: "-1ubuntu1"},
		{version: "610.43.02", revision: "-1ubuntu1"},
		{version: "615.71.09", revision: "-1ubuntu1"},
		{version: "615.71.09", revision: "-2ubuntu1"},
	}
	if distro == "ubuntu2604" { // it begins with 595, and 615 is listed for 24.04 alone
		list, latest = nil, latest[:3]
	}
	for _, e := range latest {
		e.of, e.companion = of, e.revision
		e.names, e.relations = []string{whole595}, []string{draws, virtual}
		list = append(list, e)
	}
	return list
}

// ubuntuArchive are the editions of the server branches in Ubuntu's own archive.
func ubuntuArchive(distro string) []edition {
	of := distro + " ubuntu"
	release := map[string]string{"ubuntu2204": "22.04", "ubuntu2404": "24.04", "ubuntu2604": "26.04"}[distro]
	// The whole set is listed for 580.159.03 and 570.195.03; the open flavour's names for 570.211.01, 550.144.03 and 595.71.05.
	names := []string{
		"ubuntu2404 ubuntu 580.159.03", "ubuntu2204 ubuntu 570.195.03", "ubuntu2404 ubuntu 570.211.01", "ubuntu2404 ubuntu 550.144.03",
		"ubuntu2404 ubuntu 595.71.05", "ubuntu2604 ubuntu 580.126.20", "ubuntu2404 ubuntu 470.256.02",
	}
	at := func(version, revision string) edition {
		revision = "-0ubuntu0." + release + "." + revision
		return edition{of: of, version: version, revision: revision, companion: revision, names: names, component: "restricted"}
	}
	switch distro {
	case "ubuntu2204":
		old := at("535.309.01", "2")
		old.draws = "580" // the source page says transitional; to 580 is reasoned from Ubuntu 26.04, where the target is known
		return []edition{old, at("570.195.03", "2"), at("580.159.03", "1")}
	case "ubuntu2404":
		old, absent, next := at("535.309.01", "2"), at("590.48.01", "5"), at("595.71.05", "1")
		old.draws, absent.draws = "580", "595"
		next.component, absent.component = "multiverse", "multiverse"
		return []edition{old, at("570.211.01", "1"), at("580.159.03", "1"), at("580.173.02", "1"), absent, next}
	default: // of 535, 570 and 590 only names are left there: transitional, with the version of what they draw in
		list := []edition{at("580.173.02", "1"), at("595.71.05", "1")}
		for named, of := range map[string]int{"535": 0, "570": 0, "590": 1} {
			absent := list[of]
			absent.named, absent.draws = named, branch(absent.version)
			list = append(list, absent)
		}
		return list
	}
}

// debianNVIDIA are the editions of NVIDIA's repository for Debian 12 and 13: each listing is of a whole installation, the first
// and last of open, the middle of proprietary modules. The versions are those that the lab's other tests use.
func debianNVIDIA() []edition {
	names := []string{
		"debian12 nvidia 570.158.01", "debian nvidia 580.105.08", "debian nvidia 595.58.03", "debian13 nvidia 595.45.04",
		// What must have the driver's version lies in Debian's as in Ubuntu's; listed for Debian is nvidia-fabricmanager-550 alone.
	}
	older := append(slices.Clone(names), "debian12 nvidia 550.90.07", "ubuntu2404 nvidia 570.124.06")
	newer := append(slices.Clone(names), "ubuntu2404 nvidia 580.126.20")
	list := []edition{{version: "570.172.08", names: older}}
	for _, v := range []string{"580.65.06", "580.95.05", BadDriver, "590.48.01", "595.58.03"} {
		list = append(list, edition{version: v, names: newer, bad: v == BadDriver})
	}
	for i := range list {
		list[i].of, list[i].revision, list[i].companion = "debian12 nvidia", "-1", "-1"
	}
	return list
}
