#!/bin/sh
# Unpacks a headless Chromium, and what it needs that is not installed, from Debian's packages into a folder. Needs no root.
# usage: fetch_chromium.sh FOLDER; the program is FOLDER/chromium afterwards
set -eu
mkdir -p "$1/lists/partial" "$1/archives/partial"
folder=$(cd "$1" && pwd)
apt() {
	apt-get -qq -o Debug::NoLocking=1 -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder" \
		-o Dir::Cache::Archives="$folder/archives" -o APT::Sandbox::User= "$@"
}
apt update
apt install --yes --download-only --no-install-recommends chromium-headless-shell fontconfig-config fonts-dejavu-core
for package in "$folder"/archives/*.deb; do
	dpkg-deb --extract "$package" "$folder/root"
done
rm -rf "$folder/archives" "$folder/lists" "$folder"/*.bin
cat > "$folder/chromium" <<-END
	#!/bin/sh
	root=$folder/root
	export LD_LIBRARY_PATH=\$root/usr/lib/x86_64-linux-gnu:\$root/usr/lib/x86_64-linux-gnu/pulseaudio
	[ -d /etc/fonts ] || export FONTCONFIG_PATH=\$root/etc/fonts
	export XDG_DATA_HOME=\$root/usr/share
	exec \$root/usr/lib/chromium/chromium-headless-shell "\$@"
END
chmod +x "$folder/chromium"
