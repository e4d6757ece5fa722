set -e
cd /srv/ubuntu; rm -f Packages
for f in *.deb; do dpkg-deb -f $f; printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' $f $(stat -c %s $f) $(sha256sum $f | cut -d' ' -f1); done >Packages
printf 'Origin: Ubuntu\nLabel: Ubuntu\nSuite: noble\nDate: %s\nSHA256:\n %s %s Packages\n' "$(date -Ru | sed 's/+0000/UTC/')" $(sha256sum Packages | cut -d' ' -f1) $(stat -c %s Packages) >/srv/Release
